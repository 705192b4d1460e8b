//! The documentation: links that lead somewhere.

mod links;
mod page;
