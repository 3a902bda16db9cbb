//! Compiles the emulation of the GPU kernels, for the feature that asks for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "emulation")]
    {
        println!("cargo::rerun-if-changed=kernels");
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .opt_level(1)
            .warnings(false)
            .file("kernels/emulation.cpp")
            .compile("farhold_emulation");
    }
}
