//! Shared memory that a killed engine leaves behind: segments of `/dev/shm` that only its processes had mapped.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const SHM: &str = "/dev/shm/";

/// The process group in a line of `/proc/<pid>/stat`. The name of the program, in brackets, may be anything.
fn group_of(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(2)?.parse().ok()
}

/// The segments in a page of `/proc/<pid>/maps`.
fn segments_of(maps: &str) -> impl Iterator<Item = &str> {
    maps.lines().filter_map(|line| {
        let path = line.get(line.find(SHM)?..)?.trim_end();
        // One without a name any more needs no sweeping.
        (!path.ends_with(" (deleted)") && path.len() > SHM.len()).then_some(path)
    })
}

/// What the processes of a group have mapped and no other process has.
pub(super) fn own_segments(group: i32) -> BTreeSet<String> {
    let (mut own, mut others) = (BTreeSet::new(), BTreeSet::new());
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.path();
        // Processes end while one looks.
        let Ok(stat) = fs::read_to_string(process.join("stat")) else {
            continue;
        };
        let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
        let found = segments_of(&maps).map(str::to_owned);
        if group_of(&stat) == Some(group) {
            own.extend(found);
        } else {
            others.extend(found);
        }
    }
    own.difference(&others).cloned().collect()
}

/// Removes segments; how many.
pub(super) fn sweep(segments: &BTreeSet<String>) -> usize {
    let removed = |path: &&String| fs::remove_file(Path::new(path)).is_ok();
    segments.iter().filter(removed).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_of_proc() {
        assert_eq!(group_of("12 (a (b) c) S 1 77 77 0 -1"), Some(77));
        assert_eq!(group_of("12 (a"), None);
        let maps = "7f00-7f01 rw-s 0 00:1a 5   /dev/shm/psm_1 2\n7f 0 0 0 0 /dev/shm/gone (deleted)\n7f /lib/x\n7f /dev/shm/\n";
        assert_eq!(segments_of(maps).collect::<Vec<_>>(), ["/dev/shm/psm_1 2"]);
    }

    #[test]
    fn this_process_has_a_group_and_its_segments_are_not_a_strangers() {
        let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
        assert!(group_of(&stat).is_some());
        assert!(own_segments(i32::MAX).is_empty());
    }

    proptest! {
        #[test]
        fn no_line_hurts(text in "(?s).{0,200}") {
            let _ = group_of(&text);
            for segment in segments_of(&text) {
                prop_assert!(segment.starts_with(SHM));
            }
        }
    }
}
