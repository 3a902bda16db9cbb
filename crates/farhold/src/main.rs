//! The `farhold` binary.

use farhold_bench::allocator::{self, MiMalloc};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> std::process::ExitCode {
    allocator::keep_free_memory();
    farhold::cli::main()
}
