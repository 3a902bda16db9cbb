//! The inputs of a terminal's transactions.

use super::Scale;
use crate::random::Random;

/// The six transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All of one customer's money goes to another's checking account.
    Amalgamate,
    /// A customer's money, read.
    Balance,
    /// Cents onto a checking account.
    DepositChecking,
    /// Cents from one checking account to another, if they are there.
    SendPayment,
    /// Cents onto a savings account, or from it if they are there.
    TransactSavings,
    /// A check: taken from checking, with a fee where both accounts together do not cover it.
    WriteCheck,
}

impl Kind {
    /// All, in the order of the counters.
    pub const ALL: [Self; 6] = [
        Self::Amalgamate,
        Self::Balance,
        Self::DepositChecking,
        Self::SendPayment,
        Self::TransactSavings,
        Self::WriteCheck,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amalgamate => "amalgamate",
            Self::Balance => "balance",
            Self::DepositChecking => "deposit-checking",
            Self::SendPayment => "send-payment",
            Self::TransactSavings => "transact-savings",
            Self::WriteCheck => "write-check",
        }
    }

    /// Its share of the mix, in hundredths.
    #[must_use]
    pub const fn percent(self) -> u64 {
        if matches!(self, Self::SendPayment) { 25 } else { 15 }
    }

    /// Does it name two customers?
    #[must_use]
    pub const fn has_two(self) -> bool {
        matches!(self, Self::Amalgamate | Self::SendPayment)
    }
}

/// One transaction to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Which.
    pub kind: Kind,
    /// The customer.
    pub from: i64,
    /// The other customer; the same one if there is no other.
    pub to: i64,
    /// Cents.
    pub cents: i64,
}

/// Draws inputs for the terminals of one node.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The bank's size.
    pub scale: Scale,
    /// The terminals' node: where the first customer's accounts are.
    pub node: u8,
    /// Of 100 transactions with two customers, those with the other customer's accounts on another node.
    pub distributed_percent: u32,
    /// Of 100 transactions: on hot accounts.
    pub hot_percent: u32,
}

impl Inputs {
    /// The next one.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> Input {
        let mut dice = random.below(100);
        let mut kind = Kind::WriteCheck;
        for candidate in Kind::ALL {
            if dice < candidate.percent() {
                kind = candidate;
                break;
            }
            dice -= candidate.percent();
        }
        let is_hot = random.percent(self.hot_percent);
        let from = self.number(random, is_hot);
        let mut to = (self.node, from);
        if kind.has_two() {
            to = (self.other_node(random), self.number(random, is_hot));
            if to == (self.node, from) {
                to.1 = (from + 1) % self.scale.accounts;
            }
        }
        let cents = match kind {
            Kind::DepositChecking => 130,
            Kind::TransactSavings => 2_020,
            _ => 500,
        };
        Input { kind, from: self.scale.account(self.node, from), to: self.scale.account(to.0, to.1), cents }
    }

    #[inline]
    fn number(&self, random: &mut Random, is_hot: bool) -> u32 {
        let Scale { accounts, hot, .. } = self.scale;
        let (first, count) = if is_hot || hot == accounts { (0, hot) } else { (hot, accounts - hot) };
        first + random.below(u64::from(count)) as u32
    }

    #[inline]
    fn other_node(&self, random: &mut Random) -> u8 {
        let nodes = self.scale.nodes;
        if nodes == 1 || !random.percent(self.distributed_percent) {
            return self.node;
        }
        (self.node + 1 + random.below(u64::from(nodes) - 1) as u8) % nodes
    }
}
