//! What deploy/ gives to Prometheus and Grafana: real rules, a real Prometheus, metrics of real agents.

mod alerts;
mod dashboard;
mod growth;
mod rules;
