//! What all layers share: errors, definitions of tables, references to objects, and the state that threads publish.

#[macro_use]
#[cfg_attr(not(feature = "planted"), allow(dead_code, reason = "without the feature nobody plants anything"))]
pub(crate) mod planted;

pub(crate) mod at_once;
pub(crate) mod back_off;
pub(crate) mod bell;
pub(crate) mod catalog;
pub(crate) mod definition;
pub(crate) mod desks;
pub(crate) mod epoch;
pub(crate) mod error;
pub(crate) mod ident;
pub(crate) mod nodes;
pub(crate) mod phases;
pub(crate) mod processor;
pub(crate) mod route;
pub(crate) mod slots;
pub(crate) mod table;
pub(crate) mod threads;
pub(crate) mod wire;
