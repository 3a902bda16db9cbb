//! CH-benCHmark: analytical queries over TPC-C's tables while its transactions change them.
