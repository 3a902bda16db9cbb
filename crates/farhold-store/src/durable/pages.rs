//! The bytes of a file in memory, in pages: copies share them until they are written, and those of zeros take no memory.

use std::ops::Range;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];

/// See the module. What is behind the end of the last page is zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    len: usize,
    pages: Vec<Option<Arc<Page>>>,
}

impl Pages {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds zeros up to a length.
    pub(super) fn grow(&mut self, len: usize) {
        if self.len < len {
            self.len = len;
            self.pages.resize(len.div_ceil(PAGE_BYTES), None);
        }
    }

    /// `None` if they end before.
    pub(super) fn read(&self, at: usize, into: &mut [u8]) -> Option<()> {
        if at.checked_add(into.len())? > self.len {
            return None;
        }
        let mut rest = into;
        for (page, within) in parts(at, rest.len()) {
            let part;
            (part, rest) = rest.split_at_mut(within.len());
            match &self.pages[page] {
                Some(bytes) => part.copy_from_slice(&bytes[within]),
                None => part.fill(0),
            }
        }
        Some(())
    }

    pub(super) fn write(&mut self, at: usize, from: &[u8]) {
        self.grow(at + from.len());
        let mut rest = from;
        for (page, within) in parts(at, rest.len()) {
            let part;
            (part, rest) = rest.split_at(within.len());
            let page = &mut self.pages[page];
            if page.is_some() || part.iter().any(|byte| *byte != 0) {
                let bytes = page.get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
                Arc::make_mut(bytes)[within].copy_from_slice(part);
            }
        }
    }

    /// Makes the pages with these bytes the same as another's, which is as long at least.
    pub(super) fn share(&mut self, of: &Self, bytes: Range<usize>) {
        let pages = bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES);
        self.pages[pages.clone()].clone_from_slice(&of.pages[pages]);
    }
}

/// The pages that some bytes are in, and where.
fn parts(at: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = at + len;
    (at / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
        let start = page * PAGE_BYTES;
        (page, at.max(start) - start..end.min(start + PAGE_BYTES) - start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn assert_same(pages: &Pages, all: &[u8]) {
        let mut read = vec![9; all.len()];
        assert_eq!((pages.len(), pages.read(0, &mut read)), (all.len(), Some(())));
        assert_eq!(read, all);
        assert_eq!(pages.read(1, &mut read), (read.is_empty() && pages.len() > 0).then_some(()));
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "too long")]
        fn they_are_what_a_vector_is(
            writes in prop::collection::vec((0..4 * PAGE_BYTES, 0..2 * PAGE_BYTES, 0..3_u8), 1..40),
        ) {
            let (mut pages, mut all): (Pages, Vec<u8>) = Default::default();
            for (at, len, value) in writes {
                let (copy, before) = (pages.clone(), all.clone());
                pages.write(at, &vec![value; len]);
                all.resize(all.len().max(at + len), 0);
                all[at..at + len].fill(value);
                assert_same(&pages, &all);
                assert_same(&copy, &before);
                let mut synced = copy;
                synced.grow(pages.len());
                synced.share(&pages, at..at + len);
                assert_same(&synced, &all);
            }
        }
    }
}
