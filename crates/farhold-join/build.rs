//! Compiles the emulation of the GPU kernels, for the feature that asks for it, and packs prebuilt kernels into the
//! library: the cubins in the folder that `FARHOLD_CUBINS` names, if it is set (`scripts/gpu-kernels` makes them).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "gpu")]
    embed_cubins();
    #[cfg(feature = "emulation")]
    {
        println!("cargo::rerun-if-changed=kernels");
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .opt_level(2)
            .warnings(false)
            .file("kernels/emulation.cpp")
            .compile("farhold_emulation");
    }
}

#[cfg(feature = "gpu")]
fn embed_cubins() {
    use std::path::PathBuf;
    use std::{env, fs};

    println!("cargo::rerun-if-env-changed=FARHOLD_CUBINS");
    let mut entries = Vec::new();
    if let Some(folder) = env::var_os("FARHOLD_CUBINS").map(PathBuf::from) {
        for major in [8, 9] {
            let file = folder.join(format!("farhold_sm_{major}0.cubin"));
            println!("cargo::rerun-if-changed={}", file.display());
            let file = fs::canonicalize(&file).unwrap_or_else(|error| {
                panic!("FARHOLD_CUBINS: {}: {error}; scripts/gpu-kernels makes it", file.display())
            });
            let path = file.to_str().expect("a path that Rust can spell").escape_default().to_string();
            entries.push(format!("({major}, include_bytes!(\"{path}\").as_slice())"));
        }
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("cubins.rs");
    fs::write(out, format!("static EMBEDDED: &[(i32, &[u8])] = &[{}];\n", entries.join(", ")))
        .expect("OUT_DIR can be written");
}
