//! What SQL stores with a table beyond its columns and indexes.
//!
//! ```text
//! 'S' │ version u8 │ flags u8 (1 = hidden row number) │ primary key's name │ defaults u16 │ { column u16, expression }*
//!     │ columns GENERATED ALWAYS u16 │ { column u16 }*
//! name, expression = length u32 │ UTF-8          all integers little-endian
//! ```

const MAGIC: u8 = b'S';
const VERSION: u8 = 2;
const HIDDEN_ROW_NUMBER: u8 = 1;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// The last column is a number that makes rows unique; queries do not see it.
    pub(crate) hidden_row_number: bool,
    /// The primary key's name, if it is not the default one.
    pub(crate) primary_key_name: String,
    /// The columns with a DEFAULT, and its expression as SQL.
    pub(crate) defaults: Vec<(usize, String)>,
    /// Columns that are GENERATED ALWAYS: a statement must not assign them a value.
    pub(crate) always: Vec<usize>,
}

impl Attributes {
    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![MAGIC, VERSION, if self.hidden_row_number { HIDDEN_ROW_NUMBER } else { 0 }];
        put_text(&self.primary_key_name, &mut out);
        out.extend_from_slice(&u16::try_from(self.defaults.len()).unwrap_or(u16::MAX).to_le_bytes());
        for (column, text) in &self.defaults {
            out.extend_from_slice(&u16::try_from(*column).unwrap_or(u16::MAX).to_le_bytes());
            put_text(text, &mut out);
        }
        out.extend_from_slice(&u16::try_from(self.always.len()).unwrap_or(u16::MAX).to_le_bytes());
        for column in &self.always {
            out.extend_from_slice(&u16::try_from(*column).unwrap_or(u16::MAX).to_le_bytes());
        }
        out
    }

    /// From bytes; `None` if they have another format (a table not created by SQL has none).
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [MAGIC, VERSION, flags] = *take(&mut rest, 3)? else { return None };
        let primary_key_name = take_text(&mut rest)?;
        let count = take_u16(&mut rest)?;
        let mut defaults = Vec::new();
        for _ in 0..count {
            defaults.push((usize::from(take_u16(&mut rest)?), take_text(&mut rest)?));
        }
        let mut always = Vec::new();
        for _ in 0..take_u16(&mut rest)? {
            always.push(usize::from(take_u16(&mut rest)?));
        }
        Some(Self { hidden_row_number: flags & HIDDEN_ROW_NUMBER != 0, primary_key_name, defaults, always })
    }
}

pub(crate) fn put_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(taken)
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    take(rest, 2)?.try_into().ok().map(u16::from_le_bytes)
}

pub(crate) fn take_text(rest: &mut &[u8]) -> Option<String> {
    let len = u32::from_le_bytes(take(rest, 4)?.try_into().ok()?);
    String::from_utf8(take(rest, len as usize)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let attributes = Attributes {
            hidden_row_number: true,
            primary_key_name: "ключ".to_owned(),
            defaults: vec![(0, "1 + 1".to_owned()), (7, "'x'".to_owned())],
            always: vec![0, 3],
        };
        let bytes = attributes.encode();
        assert_eq!(Attributes::decode(&bytes), Some(attributes));
        for cut in 0..bytes.len() {
            assert_eq!(Attributes::decode(&bytes[..cut]), None);
        }
    }
}
