//! What SQL stores with a table beyond its columns and indexes.
//!
//! ```text
//! 'S' │ version u8 │ flags u8 (1 = hidden row number) │ primary key's name │ defaults u16 │ { column u16, expression }*
//!     │ columns GENERATED ALWAYS u16 │ { column u16 }*
//!     │ from version 3 on: checks ever made u32 │ checks u16 │ { number u32, flags u8 (1 = validated), name, expression }*
//! name, expression = length u32 │ UTF-8          all integers little-endian
//! ```
//! A table that never had a check is stored in version 2, which earlier programs read too.

const MAGIC: u8 = b'S';
const VERSION: u8 = 3;
const VERSION_WITHOUT_CHECKS: u8 = 2;
const HIDDEN_ROW_NUMBER: u8 = 1;
const VALIDATED: u8 = 1;

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
    /// The CHECK constraints, in the order of their names.
    pub(crate) checks: Vec<CheckDef>,
    /// How many checks the table has had: the number of the next one.
    pub(crate) checks_made: u32,
}

/// A CHECK constraint as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckDef {
    /// No other check that the table ever had has this number.
    pub(crate) number: u32,
    pub(crate) name: String,
    /// The condition as SQL.
    pub(crate) text: String,
    /// False: rows that were there before it need not satisfy it.
    pub(crate) validated: bool,
}

impl Attributes {
    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let version = if self.checks_made == 0 { VERSION_WITHOUT_CHECKS } else { VERSION };
        let mut out = vec![MAGIC, version, if self.hidden_row_number { HIDDEN_ROW_NUMBER } else { 0 }];
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
        if version == VERSION {
            out.extend_from_slice(&self.checks_made.to_le_bytes());
            out.extend_from_slice(&u16::try_from(self.checks.len()).unwrap_or(u16::MAX).to_le_bytes());
            for check in &self.checks {
                out.extend_from_slice(&check.number.to_le_bytes());
                out.push(if check.validated { VALIDATED } else { 0 });
                put_text(&check.name, &mut out);
                put_text(&check.text, &mut out);
            }
        }
        out
    }

    /// From bytes; `None` if they have another format (a table not created by SQL has none).
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [MAGIC, version @ VERSION_WITHOUT_CHECKS..=VERSION, flags] = *take(&mut rest, 3)? else { return None };
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
        let hidden_row_number = flags & HIDDEN_ROW_NUMBER != 0;
        let mut attributes = Self { hidden_row_number, primary_key_name, defaults, always, ..Self::default() };
        if version == VERSION {
            attributes.checks_made = take_u32(&mut rest)?;
            for _ in 0..take_u16(&mut rest)? {
                let number = take_u32(&mut rest)?;
                let [flags] = *take(&mut rest, 1)? else { return None };
                let (name, text) = (take_text(&mut rest)?, take_text(&mut rest)?);
                attributes.checks.push(CheckDef { number, name, text, validated: flags & VALIDATED != 0 });
            }
        }
        Some(attributes)
    }

    /// Adds a check and gives it its number.
    pub(crate) fn add_check(&mut self, name: String, text: String, validated: bool) {
        let check = CheckDef { number: self.checks_made, name, text, validated };
        self.checks_made += 1;
        let place = self.checks.partition_point(|other| other.name < check.name);
        self.checks.insert(place, check);
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

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    take(rest, 4)?.try_into().ok().map(u32::from_le_bytes)
}

pub(crate) fn take_text(rest: &mut &[u8]) -> Option<String> {
    let len = take_u32(rest)?;
    String::from_utf8(take(rest, len as usize)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let mut attributes = Attributes {
            hidden_row_number: true,
            primary_key_name: "ключ".to_owned(),
            defaults: vec![(0, "1 + 1".to_owned()), (7, "'x'".to_owned())],
            always: vec![0, 3],
            ..Attributes::default()
        };
        for checks in 0..3 {
            let bytes = attributes.encode();
            assert_eq!(Attributes::decode(&bytes), Some(attributes.clone()));
            for cut in 0..bytes.len() {
                assert_eq!(Attributes::decode(&bytes[..cut]), None);
            }
            attributes.add_check(format!("проверка {}", 9 - checks), "a > 0".to_owned(), checks == 1);
        }
        assert!(attributes.checks.is_sorted_by_key(|check| &check.name));
        attributes.checks.clear();
        assert_eq!(Attributes::decode(&attributes.encode()), Some(attributes.clone()), "its next number is new");
    }

    /// Tables of earlier programs have no checks, and are stored as by these.
    #[test]
    fn attributes_without_checks_are_those_of_earlier_programs() {
        let earlier = b"S\x02\x01\x01\0\0\0k\x01\0\x02\0\x01\0\0\x001\x01\0\x05\0";
        let attributes = Attributes::decode(earlier).unwrap();
        assert_eq!((attributes.primary_key_name.as_str(), attributes.always.as_slice()), ("k", &[5][..]));
        assert_eq!((attributes.defaults.as_slice(), attributes.checks_made), (&[(2, "1".to_owned())][..], 0));
        assert!(attributes.hidden_row_number && attributes.checks.is_empty());
        assert_eq!(attributes.encode(), earlier);
    }
}
