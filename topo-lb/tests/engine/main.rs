//! The topology engine, proven: its originals' own tables, what these leave out, a second
//! implementation that must agree with it, and state that must not depend on the way to it.

mod candidates;
mod hints;
mod hostile;
mod keys;
mod lint;
mod made;
mod naive;
mod node_labels;
mod openyurt;
mod policy;
mod random;
mod refined;
mod same_rules;
mod seeds;
mod speed;
mod updates;
