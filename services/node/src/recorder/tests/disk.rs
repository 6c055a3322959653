use std::sync::Arc;

use super::super::disk;
use super::*;

fn on_disk(dir: &std::path::Path, rooms: u32) -> NodeConfig {
    config(RecorderConfig {
        dir: Some(dir.to_owned()),
        rooms,
        days: 7,
    })
}

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn bad_ends_survive_the_process_and_good_ones_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    let recorder = Recorder::start(&on_disk(dir.path(), 100), me(Role::Decode, 2), &tasks).await;
    part(&recorder, 1, LOST);
    part(&recorder, 2, PartEnd::Done);
    recorder.flush(SOON).await;
    assert_eq!(recorder.counts().get()[0], ("written", 1));
    // A crash in the middle of a line.
    let file = dir.path().join("node-0/0000000000000002.jsonl");
    let whole = std::fs::read_to_string(&file).unwrap();
    assert!(whole.ends_with('\n'));
    std::fs::write(&file, format!("{whole}{}", &whole[..whole.len() / 2])).unwrap();
    let next = Recorder::start(&on_disk(dir.path(), 100), me(Role::Decode, 9), &tasks).await;
    let kept = next.record(RoomId::from_random(1)).unwrap();
    assert_eq!(Some(kept), recorder.record(RoomId::from_random(1)));
    assert_eq!(next.record(RoomId::from_random(2)), None);
    assert_eq!(tasks.shutdown(SOON).await, 0);
}

#[tokio::test]
async fn what_is_written_as_the_node_stops_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    let recorder = Recorder::start(&on_disk(dir.path(), 1000), me(Role::Decode, 2), &tasks).await;
    for number in 1..300 {
        part(&recorder, number, LOST);
    }
    assert_eq!(tasks.shutdown(SOON).await, 0);
    let [(_, written), (_, full), ..] = recorder.counts().get();
    assert_eq!((written, full), (299, 0));
}

#[tokio::test]
async fn files_are_bounded_by_number_and_age() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    for life in 1..6 {
        let recorder = Recorder::start(&on_disk(dir.path(), 20), me(Role::Decode, life), &tasks).await;
        for number in 0..100 {
            part(&recorder, life * 1000 + number, LOST);
            if number % 10 == 0 {
                recorder.flush(SOON).await;
            }
        }
        recorder.flush(SOON).await;
    }
    let folder = dir.path().join("node-0");
    let files = || std::fs::read_dir(&folder).unwrap().count();
    let last = std::fs::read_to_string(folder.join("0000000000000005.jsonl")).unwrap();
    assert!(last.lines().count() <= 40, "{}", last.lines().count());
    assert_eq!(files(), 2, "the file of the life before, and its own");
    let (mut disk, kept) = disk::Disk::open(
        dir.path(),
        &on_disk(dir.path(), 20).run.recorder,
        ("node-0", Incarnation::new(77)),
        unix_ms(),
    )
    .unwrap();
    assert_eq!(kept.len(), 20);
    assert_eq!(kept[19].room, RoomId::from_random(5099));
    disk.write(&[Arc::new(kept[0].clone())]).unwrap();
    let later = unix_ms() + 8 * 24 * 3600 * 1000;
    let bounds = on_disk(dir.path(), 20).run.recorder;
    let (_, old) = disk::Disk::open(dir.path(), &bounds, ("node-0", Incarnation::new(78)), later).unwrap();
    assert!(old.is_empty(), "older than a week");
    assert_eq!(files(), 1, "only its own");
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_no_reason_not_to_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let tasks = Tasks::new();
    let recorder = Recorder::start(&on_disk(file.path(), 20), me(Role::Decode, 1), &tasks).await;
    part(&recorder, 1, LOST);
    recorder.flush(SOON).await;
    assert!(recorder.record(RoomId::from_random(1)).is_some());
}

#[tokio::test]
async fn a_disk_that_fails_later_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = Tasks::new();
    let recorder = Recorder::start(&on_disk(dir.path(), 20), me(Role::Decode, 1), &tasks).await;
    std::fs::remove_dir_all(dir.path()).unwrap();
    part(&recorder, 1, LOST);
    recorder.flush(SOON).await;
    let counts = recorder.counts().get();
    assert_eq!((counts[0].1, counts[2]), (0, ("write_failed", 1)));
}

#[test]
fn a_folder_is_a_name_and_nothing_else() {
    assert_eq!(disk::folder_name("decode-0.a_b"), "decode-0.a_b");
    assert_eq!(disk::folder_name(".."), "%2e.");
    assert_eq!(disk::folder_name("../../etc"), "%2e.%2f..%2fetc");
    let long = disk::folder_name(&"ä".repeat(120));
    assert!(
        long.len() < 255 && long != disk::folder_name(&"ä".repeat(121)),
        "{long}"
    );
}
