//! Builds the shim over libfabric's inline functions, where the feature wants it.

fn main() {
    println!("cargo::rerun-if-changed=src/provider/libfabric/shim.c");
    #[cfg(feature = "libfabric")]
    libfabric();
}

#[cfg(feature = "libfabric")]
fn libfabric() {
    let found = pkg_config::Config::new().atleast_version("1.17").probe("libfabric");
    let library = found.unwrap_or_else(|error| {
        panic!("the feature `libfabric` needs libfabric 1.17 or newer (Debian: libfabric-dev): {error}")
    });
    cc::Build::new()
        .file("src/provider/libfabric/shim.c")
        .includes(&library.include_paths)
        .warnings_into_errors(cfg!(debug_assertions))
        .compile("farhold_libfabric_shim");
}
