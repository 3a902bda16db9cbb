//! Order, round trips and garbage.
