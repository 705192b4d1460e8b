//! Properties of plans, over random changes of a node's Services.

mod fairness;
mod proof;
mod rows;
mod world;
