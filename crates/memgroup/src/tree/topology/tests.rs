use crate::state::stats::update_tree::UpdateTree;
use crate::tree::topology::{ROOT, Tree};

fn tree(groups_max: u32, depth_max: u32) -> Tree {
    let mut tree = Tree::new(groups_max, depth_max);
    tree.begin_root();
    tree
}

#[test]
fn releases_left_to_a_thread_are_taken_the_last_first() {
    let (mut tree, [one, other]) = (tree(10, 2), [(); 2].map(|()| UpdateTree::new(1, 10)));
    let ids = ["a", "b", "c", "d"].map(|name| tree.create(ROOT, name).unwrap());
    ids[..3].iter().for_each(|&id| tree.leave_unsettled(id, &one));
    tree.leave_unsettled(ids[3], &other);
    assert!(ids.iter().all(|&id| tree.is_unsettled(id)));
    let taken: Vec<_> = std::iter::from_fn(|| tree.take_unsettled(&one)).collect();
    assert_eq!(taken, [ids[2], ids[1], ids[0]]);
    assert_eq!(ids.map(|id| tree.is_unsettled(id)), [false, false, false, true]);
    assert_eq!((tree.take_unsettled(&other), tree.take_unsettled(&other)), (Some(ids[3]), None));
}

#[test]
fn a_walk_in_steps_misses_no_group_that_stays() {
    let mut tree = tree(10, 3);
    let mut make = |parent, name| tree.create(parent, name).unwrap();
    let top = make(ROOT, "top");
    let (last, inner) = (make(top, "last"), make(top, "inner"));
    let (leaf, first) = (make(inner, "leaf"), make(top, "first"));
    assert_eq!(tree.subtree(top).collect::<Vec<_>>(), [top, first, inner, leaf, last]);
    // All groups at which the walk may stand are removed, and a sibling is made.
    tree.retire(first, true);
    tree.retire(leaf, true);
    tree.retire(inner, true);
    tree.create(top, "new").unwrap();
    assert_eq!(
        [first, leaf, inner, last].map(|at| tree.after(at, top)),
        [Some(inner), Some(last), Some(last), None]
    );
    assert_eq!((tree.child_count(top), tree.child_count(leaf)), (2, 0));
}

#[test]
fn dying_groups_are_listed_in_the_order_of_their_removal() {
    let mut tree = tree(100, 2);
    let mut online: Vec<_> = (0..40).map(|at| tree.create(ROOT, &format!("{at}")).unwrap()).collect();
    let (mut dying, mut number) = (Vec::new(), 1u64);
    for step in 0..2000 {
        // A linear congruential generator: removals, releases and creations in some order.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (choice, at) = (number >> 62, (number >> 33) as usize);
        if choice < 2 && !online.is_empty() {
            let id = online.swap_remove(at % online.len());
            tree.retire(id, false);
            dying.push(id);
        } else if choice == 2 && !dying.is_empty() {
            tree.release(dying.remove(at % dying.len()));
        } else if online.len() + dying.len() < 60 {
            online.push(tree.create(ROOT, &format!("step-{step}")).unwrap());
        }
        assert_eq!(tree.dying_after(ROOT, None).collect::<Vec<_>>(), dying);
        assert_eq!(tree.child_count(ROOT), online.len());
        if let Some(&id) = dying.get(at % dying.len().max(1)) {
            let rest = &dying[dying.iter().position(|&other| other == id).unwrap() + 1..];
            assert_eq!(tree.dying_after(ROOT, Some(id)).collect::<Vec<_>>(), rest);
        }
    }
}

#[test]
fn the_list_of_departed_groups_grows_with_dying_ones_only() {
    let mut tree = tree(5000, 2);
    let make = |tree: &mut Tree| tree.create(ROOT, "group").unwrap();
    for _ in 0..1000 {
        let id = make(&mut tree);
        tree.retire(id, true);
        tree.release(id);
    }
    assert!(tree.departed.len() <= 66 && tree.departed() == 0, "one place, used again and again");
    let dying: Vec<_> = (0..1000)
        .map(|_| {
            let id = make(&mut tree);
            tree.retire(id, true);
            id
        })
        .collect();
    assert_eq!(tree.departed(), 1000);
    assert!(tree.departed.len() <= 1066);
    let taken: std::collections::BTreeSet<_> = std::iter::from_fn(|| tree.take_departed()).collect();
    assert_eq!(taken, dying.into_iter().collect());
}

#[test]
fn writes_as_much_of_a_path_as_there_is_room_for() {
    let mut tree = tree(10, 3);
    let tenants = tree.create(ROOT, "tenants").unwrap();
    let blue = tree.create(tenants, "blau-grün").unwrap();
    let request = tree.create(blue, "request-17").unwrap();
    let written = |id, most: usize| {
        let mut buffer = vec![0; most];
        let begin = tree.write_path(id, &mut buffer);
        String::from_utf8(buffer[begin..].to_vec()).unwrap()
    };
    let whole = "/tenants/blau-grün/request-17";
    assert_eq!(tree.path(request), whole);
    for (most, expected) in [
        (100, whole),
        (whole.len(), whole),
        (whole.len() - 1, "…/blau-grün/request-17"),
        (25, "…/blau-grün/request-17"),
        (24, "…/request-17"),
        (14, "…/request-17"),
        (13, "…request-17"),
        (9, "…est-17"),
    ] {
        assert_eq!(written(request, most), expected, "{most}");
    }
    // No character is cut: with the first byte of the two in the middle it would be.
    for (most, expected) in [(13, "…blau-grün"), (5, "…n"), (6, "…ün"), (7, "…rün")] {
        assert_eq!(written(blue, most), expected, "{most}");
    }
    assert_eq!((written(ROOT, 100), written(tenants, 8)), ("/".to_owned(), "/tenants".to_owned()));
}

#[test]
fn finds_children_by_name_as_a_map_does() {
    let mut tree = tree(2000, 2);
    let mut expected = std::collections::BTreeMap::new();
    let mut state = 1u64;
    for step in 0..20_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let name = format!("{:03}", (state >> 33) % 700);
        match expected.remove(&name) {
            None => _ = expected.insert(name.clone(), tree.create(ROOT, &name).unwrap()),
            Some(id) => {
                assert_eq!(tree.child(ROOT, &name), Some(id));
                tree.retire(id, true);
                tree.release(id);
                assert_eq!(tree.child(ROOT, &name), None);
            }
        }
        assert_eq!(tree.child_count(ROOT), expected.len());
        if step % 100 == 0 {
            let of = |after: Option<&str>| {
                let children = tree.children_after(ROOT, after);
                children.map(|(name, id)| (name.to_owned(), id)).collect::<Vec<_>>()
            };
            let whole: Vec<_> = expected.iter().map(|(name, &id)| (name.clone(), id)).collect();
            assert_eq!(of(None), whole);
            let after = whole.partition_point(|(other, _)| *other <= name);
            assert_eq!(of(Some(&name)), whole[after..]);
        }
    }
}

#[test]
fn children_in_the_order_of_their_names_make_no_deep_tree() {
    let mut tree = tree(20_001, 2);
    for number in 0..20_000 {
        tree.create(ROOT, &format!("{number:05}")).unwrap();
    }
    // A balanced tree has 15 levels. One in ten thousand treaps of this size has more than 50.
    assert!(tree.levels_of_names(ROOT) <= 60);
}
