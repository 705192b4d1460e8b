//! Properties of plans, over random changes of a node's Services.

mod direct;
mod fairness;
mod prefixes;
mod ranges;
mod rows;
mod world;
