use super::*;

const MODEL: &Option<String> = &None;
const WEIGHTS: [u32; 3] = [16, 4, 1];

fn at(class: Class, tenant: &str) -> Place<'_> {
    Place {
        model: MODEL,
        class,
        tenant,
    }
}

/// Serves so many; the number of each as `name` has it.
fn serve(queue: &mut Queue, count: usize, name: impl Fn(RequestKey) -> (Class, String)) -> BTreeMap<String, u32> {
    let mut served = BTreeMap::new();
    for _ in 0..count {
        let key = queue.next(MODEL, WEIGHTS).expect("somebody waits");
        let (class, tenant) = name(key);
        queue.serve(at(class, &tenant), key, WEIGHTS);
        assert!(queue.is_true());
        *served.entry(format!("{}/{tenant}", class.label())).or_default() += 1;
    }
    served
}

#[test]
fn tenants_share_by_tokens_and_not_by_requests() {
    let mut queue = Queue::default();
    // Tenant a asks for little, four hundred times; b for four times as much.
    for key in 0..400 {
        queue.push(at(Class::Normal, "a"), RequestKey(key), 100);
        queue.push(at(Class::Normal, "b"), RequestKey(1000 + key), 400);
    }
    let served = serve(&mut queue, 100, |key| {
        (Class::Normal, if key.0 < 1000 { "a" } else { "b" }.to_owned())
    });
    assert_eq!(
        served,
        BTreeMap::from([("normal/a".into(), 80), ("normal/b".into(), 20)])
    );
}

#[test]
fn one_who_comes_late_has_no_credit_and_no_debt() {
    let mut queue = Queue::default();
    (0..100).for_each(|key| queue.push(at(Class::Normal, "old"), RequestKey(key), 100));
    let name = |key: RequestKey| (Class::Normal, if key.0 < 1000 { "old" } else { "new" }.to_owned());
    serve(&mut queue, 50, name);
    (1000..1100).for_each(|key| queue.push(at(Class::Normal, "new"), RequestKey(key), 100));
    let served = serve(&mut queue, 20, name);
    assert_eq!(
        served,
        BTreeMap::from([("normal/new".into(), 10), ("normal/old".into(), 10)])
    );
    // One request at a time brings no more than a share, however large it is.
    let mut queue = Queue::default();
    (0..500).for_each(|key| queue.push(at(Class::Normal, "old"), RequestKey(key), 100));
    let mut large = 0;
    for round in 0..220 {
        if !queue.contains(at(Class::Normal, "new"), RequestKey(1000 + large)) {
            queue.push(at(Class::Normal, "new"), RequestKey(1000 + large), 1000);
        }
        let served = serve(&mut queue, 1, name);
        large += u64::from(served.contains_key("normal/new"));
        assert!(large <= round / 10 + 1, "{large} large ones in {round} rounds");
    }
    assert_eq!(large, 20);
}

#[test]
fn classes_share_by_weights_and_none_starves() {
    let mut queue = Queue::default();
    for key in 0..1000 {
        for class in Class::ALL {
            let key = RequestKey(1000 * class.index() as u64 + key);
            queue.push(at(class, "t"), key, 50);
        }
    }
    let served = serve(&mut queue, 210, |key| {
        (Class::ALL[(key.0 / 1000) as usize], "t".to_owned())
    });
    let expected = [("high/t", 160), ("low/t", 10), ("normal/t", 40)];
    assert_eq!(served, expected.map(|(name, count)| (name.to_owned(), count)).into());
}

#[test]
fn what_was_tried_before_costs_nothing_and_goes_first() {
    let mut queue = Queue::default();
    (10..20).for_each(|key| queue.push(at(Class::Normal, "a"), RequestKey(key), 100));
    (20..30).for_each(|key| queue.push(at(Class::Normal, "b"), RequestKey(key), 100));
    queue.push(at(Class::Normal, "b"), RequestKey(3), 0);
    assert_eq!(queue.next(MODEL, WEIGHTS), Some(RequestKey(3)));
}

#[test]
fn what_is_ahead_is_what_a_share_leaves() {
    let mut queue = Queue::default();
    (0..100).for_each(|key| queue.push(at(Class::Normal, "flood"), RequestKey(key), 100));
    let ahead = |queue: &Queue, class, tenant| queue.ahead(at(class, tenant), 100, WEIGHTS);
    assert_eq!(ahead(&queue, Class::Normal, "flood"), 10_000);
    assert_eq!(ahead(&queue, Class::Normal, "other"), 100, "one of the flood's");
    assert_eq!(ahead(&queue, Class::High, "other"), 25, "a quarter of its own length");
    assert_eq!(ahead(&queue, Class::Low, "other"), 400, "four times its own length");
    (100..110).for_each(|key| queue.push(at(Class::Normal, "other"), RequestKey(key), 100));
    assert_eq!(ahead(&queue, Class::Normal, "other"), 1000 + 1100);
}

#[test]
fn who_has_the_most_of_the_least_urgent_gives_up_a_place() {
    let mut queue = Queue::default();
    (0..10).for_each(|key| queue.push(at(Class::Normal, "flood"), RequestKey(key), 100));
    queue.push(at(Class::Normal, "small"), RequestKey(50), 100);
    let by = |queue: &Queue, class, tenant| queue.displaced_by(at(class, tenant), 100);
    assert_eq!(by(&queue, Class::Normal, "flood"), None, "it would be its own");
    assert_eq!(
        by(&queue, Class::Normal, "other"),
        Some(RequestKey(9)),
        "the flood's last"
    );
    assert_eq!(by(&queue, Class::Low, "other"), None);
    assert_eq!(by(&queue, Class::High, "other"), Some(RequestKey(9)));
    queue.push(at(Class::Low, "small"), RequestKey(60), 100);
    assert_eq!(by(&queue, Class::Normal, "flood"), Some(RequestKey(60)));
    // What had a room before is not given up.
    queue.push(at(Class::Low, "small"), RequestKey(60), 0);
    assert_eq!(by(&queue, Class::Normal, "flood"), None);
}

#[test]
fn one_that_was_passed_over_has_its_place_still() {
    let mut queue = Queue::default();
    queue.push(at(Class::Normal, "large"), RequestKey(1), 1000);
    (10..40).for_each(|key| queue.push(at(Class::Normal, "small"), RequestKey(key), 100));
    for round in 0..9 {
        let key = queue.next(MODEL, WEIGHTS).expect("somebody waits");
        assert_eq!(key, RequestKey(10 + round));
        queue.serve(at(Class::Normal, "small"), key, WEIGHTS);
    }
    // From now on the large one is first, whenever it is looked at.
    for round in 0..5 {
        let first = queue.next(MODEL, WEIGHTS).expect("somebody waits");
        let small = RequestKey(19 + round);
        let lifted = if first == RequestKey(1) {
            queue.lift(at(Class::Normal, "large"), first)
        } else {
            assert_eq!(first, small, "equal marks");
            None
        };
        queue.serve(at(Class::Normal, "small"), small, WEIGHTS);
        if let Some(lifted) = lifted {
            queue.put_back(at(Class::Normal, "large"), first, lifted);
        }
        assert!(queue.is_true());
    }
    assert_eq!(queue.next(MODEL, WEIGHTS), Some(RequestKey(1)));
    // Alone and passed over, it keeps its shelf.
    let mut queue = Queue::default();
    queue.push(at(Class::Low, "a"), RequestKey(1), 5);
    let lifted = queue.lift(at(Class::Low, "a"), RequestKey(1)).expect("it waits");
    assert_eq!(queue.len(), 0);
    queue.put_back(at(Class::Low, "a"), RequestKey(1), lifted);
    assert!(queue.remove(at(Class::Low, "a"), RequestKey(1)));
    assert_eq!((queue.len(), queue.models().len()), (0, 0));
}

#[test]
fn nothing_is_kept_of_what_left() {
    let mut queue = Queue::default();
    for key in 0..100 {
        queue.push(at(Class::Low, &format!("t{key}")), RequestKey(key), 7);
    }
    assert_eq!((queue.len(), queue.tenants(), queue.tokens()), (100, 100, [0, 0, 700]));
    for key in 0..100 {
        assert!(queue.remove(at(Class::Low, &format!("t{key}")), RequestKey(key)));
        assert!(!queue.remove(at(Class::Low, &format!("t{key}")), RequestKey(key)));
    }
    assert_eq!((queue.len(), queue.tenants(), queue.models().len()), (0, 0, 0));
}
