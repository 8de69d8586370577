//! Which bytes of an object were written: exact, whatever order they come in.

/// Disjoint, sorted runs of bytes with gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    runs: Vec<(u64, u64)>,
}

impl Coverage {
    /// Adds `begin..end`. The error is a byte of it that is there already; nothing is added then.
    pub(super) fn add(&mut self, begin: u64, end: u64) -> Result<(), u64> {
        if begin >= end {
            return Ok(());
        }
        // The first run that ends at or after `begin`.
        let i = self.runs.partition_point(|r| r.1 < begin);
        let touches_before = self.runs.get(i).is_some_and(|r| r.1 == begin);
        let next = if touches_before { i + 1 } else { i };
        if let Some(r) = self.runs.get(next)
            && r.0 < end
        {
            return Err(r.0.max(begin));
        }
        let touches_after = self.runs.get(next).is_some_and(|r| r.0 == end);
        match (touches_before, touches_after) {
            (true, true) => {
                self.runs[i].1 = self.runs[next].1;
                self.runs.remove(next);
            }
            (true, false) => self.runs[i].1 = end,
            (false, true) => self.runs[next].0 = begin,
            (false, false) => self.runs.insert(i, (begin, end)),
        }
        Ok(())
    }

    /// Bytes covered.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(|r| r.1 - r.0).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_and_overlaps_are_found() {
        let mut c = Coverage::default();
        c.add(10, 20).unwrap();
        c.add(30, 40).unwrap();
        c.add(5, 5).unwrap();
        assert_eq!(c.bytes(), 20);
        for (begin, end, at) in
            [(10, 11, 10), (19, 25, 19), (5, 11, 10), (25, 31, 30), (0, 100, 10), (15, 16, 15), (39, 41, 39)]
        {
            assert_eq!(c.add(begin, end), Err(at), "{begin}..{end}");
        }
        c.add(20, 30).unwrap();
        assert_eq!(c.runs, [(10, 40)]);
        c.add(0, 10).unwrap();
        c.add(41, 42).unwrap();
        c.add(40, 41).unwrap();
        assert_eq!(c.runs, [(0, 42)]);
    }

    #[test]
    fn any_order_of_pieces_covers_the_whole() {
        // Every permutation of five pieces of unequal length.
        let ends = [0u64, 3, 4, 9, 16, 17];
        let mut order: Vec<usize> = (0..5).collect();
        fn permute(order: &mut Vec<usize>, k: usize, ends: &[u64; 6]) {
            if k == order.len() {
                let mut c = Coverage::default();
                for &i in order.iter() {
                    c.add(ends[i], ends[i + 1]).unwrap();
                    assert!(c.add(ends[i], ends[i] + 1).is_err());
                }
                assert_eq!(c.runs, [(0, 17)]);
                return;
            }
            for i in k..order.len() {
                order.swap(k, i);
                permute(order, k + 1, ends);
                order.swap(k, i);
            }
        }
        permute(&mut order, 0, &ends);
    }
}
