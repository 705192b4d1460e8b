//! Tests of the topology engine: the tables of its originals, cases beyond them, a second
//! implementation that must agree, and the state's independence of the order of updates.

mod advice;
mod alike;
mod annotations;
mod candidates;
mod crowding;
mod direct;
mod dns;
mod ejection;
mod evacuation;
mod hints;
mod homeward;
mod hostile;
mod island;
mod keys;
mod lint;
mod made;
mod naive;
mod named;
mod node_labels;
mod observed;
mod openyurt;
mod outside;
mod policies;
mod policy;
mod random;
mod refined;
mod same_rules;
mod seeds;
mod setting;
mod speed;
mod updates;
mod weights;
mod what_if;
mod what_if_moved;
mod without_room;
