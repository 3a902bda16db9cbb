//! How long is a node's region? As long as at the node's first start, which a file says.

use super::files::Directory;
use super::{DurableError, Identity, check_words, seal, unseal};

const MAGIC: u64 = u64::from_le_bytes(*b"FARHRGN1");

/// Bytes of a node's region: those of its first start, because rows are restored to their former places. `wanted` counts if there
/// was no start.
///
/// ```text
///  "node-N.region":  magic │ cluster │ node │ bytes │ checksum
/// ```
///
/// # Errors
/// [`DurableError`].
pub fn region_bytes(directory: &dyn Directory, identity: &Identity, wanted: u64) -> Result<u64, DurableError> {
    let name = format!("node-{}.region", identity.node.0);
    let io = |error: std::io::Error| DurableError::io(&format!("the file {name}"), &error);
    let (cluster, node) = (identity.cluster, u64::from(identity.node.0));
    match directory.open(&name) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        found => {
            let file = found.map_err(io)?;
            let mut bytes = [0; 40];
            let len = file.len().map_err(io)?;
            if len != bytes.len() as u64 {
                let what = "it ends there and not at byte 40; put it back from a copy";
                return Err(DurableError::damaged(&name, len, what));
            }
            file.read_at(0, &mut bytes).map_err(io)?;
            let words =
                unseal::<4>(&bytes).ok_or_else(|| DurableError::damaged(&name, 0, "its checksum is another"))?;
            check_words(&name, &words, &[("magic number", MAGIC), ("cluster", cluster), ("node", node)])?;
            return Ok(words[3]);
        }
    }
    let fresh = format!("{name}.fresh");
    let file = directory.create(&fresh).map_err(io)?;
    file.write_at(0, &seal(&[MAGIC, cluster, node, wanted])).map_err(io)?;
    file.sync().and_then(|()| directory.rename(&fresh, &name)).and_then(|()| directory.sync()).map_err(io)?;
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::power::Volatile;
    use farhold_fabric::NodeId;

    #[test]
    fn what_says_how_long_a_region_is_names_itself_when_it_is_cut_off() {
        let directory = Volatile::default();
        let identity = Identity { cluster: 7, node: NodeId(1), nodes: 2 };
        for wanted in [9 << 20, 5 << 20] {
            assert_eq!(region_bytes(&directory, &identity, wanted), Ok(9 << 20));
        }
        let bytes = directory.bytes("node-1.region");
        for len in [0, 39, 41] {
            let other = [&bytes[..], &[0; 8]].concat();
            directory.create("node-1.region").and_then(|file| file.write_at(0, &other[..len])).expect("another length");
            let error = region_bytes(&directory, &identity, 9 << 20).expect_err("a refusal").to_string();
            let says =
                ["node-1.region".to_owned(), format!("at byte {len}:"), "at byte 40".to_owned(), "copy".to_owned()];
            assert!(says.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
