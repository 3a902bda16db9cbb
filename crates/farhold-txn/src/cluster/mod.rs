//! What a node knows of its cluster: the numbered configuration, and what commits look at of it.

pub(crate) mod configuration;
pub(crate) mod progress;
pub(crate) mod reach;
pub(crate) mod register;
pub(crate) mod settings;
pub(crate) mod view;
