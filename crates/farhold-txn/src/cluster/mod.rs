//! What a node knows of its cluster: the numbered configuration, and the part of it that commits read.

pub(crate) mod configuration;
pub(crate) mod progress;
pub(crate) mod reach;
pub(crate) mod register;
pub(crate) mod settings;
pub(crate) mod view;
