//! Indexes that live in the region. (The ordered ones are `farhold-btree`'s and live in the node's own memory.)

pub mod hash;
