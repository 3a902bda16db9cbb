//! Stand-ins for the lower crates' types until those crates are in the tree; each comes from where its comment says.
#![allow(missing_docs)]

/// `farhold_fabric::NodeId`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u8);
/// `farhold_fabric::Fabric`
pub struct Fabric;
/// `farhold_fabric::Handle`
#[derive(Clone)]
pub struct Handle;
/// `farhold_fabric::FabricError`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricError;
/// `farhold_store::row::RowError`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError;
/// `farhold_store::row::Schema`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema;
/// `farhold_store::row::Layout`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout;
/// `farhold_store::row::SecondaryIndex`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondaryIndex;
