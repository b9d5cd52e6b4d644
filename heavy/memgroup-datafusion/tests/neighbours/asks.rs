//! Which query is asked to spill, and how often.

use std::sync::Arc;
use std::time::Instant;

use datafusion::execution::memory_pool::MemoryReservation;
use memgroup::Group;

use crate::{Database, MIB, consumer, text_of};

#[test]
fn the_largest_query_of_the_largest_tenant_is_asked_to_spill_once() {
    let database = Database::new();
    let (hog, beside, small) =
        (database.pool("hog", "1"), database.pool("hog", "2"), database.pool("small", "1"));
    let (sort, other) = (consumer(&hog, "sort", true), consumer(&beside, "other", true));
    sort.try_grow(50 * MIB).unwrap();
    other.try_grow(30 * MIB).unwrap();
    let join = consumer(&small, "join", false);
    join.try_grow(30 * MIB).unwrap_err();

    other.try_grow(MIB).expect("it holds less than the one that was asked");
    let error = sort.try_grow(MIB).unwrap_err();
    assert!(text_of(&error).contains("or another query needs its memory"), "{error}");
    sort.shrink(50 * MIB);
    join.try_grow(30 * MIB).unwrap();
    sort.try_grow(2 * MIB).unwrap();
    sort.try_grow(MIB).expect("it was asked once");
}

#[test]
fn an_aggregate_is_asked_until_it_merges() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let aggregate = consumer(&hog, "FinalHashAggregateStream[0]", true);
    let join = consumer(&small, "join", false);
    let ask = || {
        aggregate.try_grow(60 * MIB).unwrap();
        join.try_grow(50 * MIB).unwrap_err();
        aggregate.try_grow(MIB)
    };
    for _ in 0..2 {
        ask().expect_err("it is asked");
        // Groups by a number leave no byte when it spills them. It reads on.
        aggregate.free();
        join.try_grow(50 * MIB).unwrap();
        join.free();
    }
    aggregate.try_grow(MIB).unwrap();
    // Its input ends.
    aggregate.free();
    ask().expect("it cannot spill any more");
    // 60 of 100 MiB are its own.
    let sort = consumer(&hog, "sort", true);
    sort.try_grow(20 * MIB).unwrap();
    join.try_grow(30 * MIB).unwrap_err();
    sort.try_grow(MIB).expect_err("it is asked instead");
}

#[test]
fn the_largest_query_gives_way_itself() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let (join, little) = (consumer(&hog, "join", false), consumer(&small, "little", true));
    join.try_grow(80 * MIB).unwrap();
    little.try_grow(10 * MIB).unwrap();
    join.try_grow(20 * MIB).unwrap_err();
    little.try_grow(MIB).expect("no query is asked for the largest");
}

#[test]
fn a_consumer_that_was_asked_spills_although_it_holds_little() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let (sort, other) = (consumer(&hog, "sort", true), consumer(&hog, "other", true));
    sort.try_grow(10 * MIB).unwrap();
    other.try_grow(2 * MIB).unwrap();
    let join = consumer(&small, "join", false);
    join.try_grow(95 * MIB).unwrap_err();
    // Each may hold 50 MiB, which this growth finds out.
    other.try_grow(MIB).expect("it was not asked");
    let error = sort.try_grow(MIB).unwrap_err();
    assert!(text_of(&error).contains("or another query needs its memory"), "{error}");
    sort.try_grow(MIB).expect("it was asked once");
}

#[test]
fn a_tenant_within_its_protection_is_not_asked() {
    for protect in [|group: &Group| group.set_low(90 << 20), |group: &Group| group.set_min(90 << 20)] {
        let database = Database::new();
        let (kept, small) = (database.pool("kept", "1"), database.pool("small", "1"));
        protect(&kept.group().parent().unwrap()).unwrap();
        let sort = consumer(&kept, "sort", true);
        sort.try_grow(80 * MIB).unwrap();
        consumer(&small, "join", false).try_grow(30 * MIB).unwrap_err();
        sort.try_grow(MIB).unwrap();
    }
}

#[test]
fn bytes_that_are_kept_for_another_tenant_are_no_room() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let kept = database.tenants.create("kept").unwrap();
    kept.set_min(40 << 20).unwrap();
    database.tenants.set_reserve_min(true).unwrap();
    let (sort, join) = (consumer(&hog, "sort", true), consumer(&small, "join", false));
    sort.try_grow(50 * MIB).unwrap();
    // The limit has 50 MiB more, and 40 of them are kept.
    join.try_grow(20 * MIB).unwrap_err();
    let error = sort.try_grow(MIB).unwrap_err();
    assert!(text_of(&error).contains("or another query needs its memory"), "{error}");
}

#[test]
fn the_tenant_that_fair_shares_name_is_asked() {
    let database = Database::new();
    database.tenants.set_share(8).unwrap();
    let (above, small) = (database.pool("above", "1"), database.pool("small", "1"));
    // By its `low` it would have no excess; by its share it has.
    above.group().parent().unwrap().set_low(90 << 20).unwrap();
    let (sort, join) = (consumer(&above, "sort", true), consumer(&small, "join", false));
    let mut held = 0;
    while sort.try_grow(MIB).is_ok() {
        held += MIB;
    }
    assert!(held > 50 * MIB, "{held} bytes");
    // Within its even share: the limit refuses it, and names the one above.
    join.try_grow(40 * MIB).unwrap_err();
    sort.shrink(8 * MIB);
    let error = sort.try_grow(MIB).unwrap_err();
    assert!(text_of(&error).contains("or another query needs its memory"), "{error}");
    sort.try_grow(MIB).expect("it was asked once");
}

#[test]
fn a_growth_that_no_spill_can_help_makes_no_query_spill() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let (sort, join) = (consumer(&hog, "sort", true), consumer(&small, "join", false));
    sort.try_grow(50 * MIB).unwrap();
    join.try_grow(1 << 40).unwrap_err();
    join.try_grow(101 * MIB).unwrap_err();
    sort.try_grow(MIB).expect("it was not asked");
}

#[test]
fn each_level_gives_by_its_own_protection() {
    let database = Database::new();
    let of = |path: &str| Arc::new(database.pool_of(&format!("/tenants/{path}")));
    let (kept, other, small) = (of("office/kept/1"), of("office/other/1"), of("small/1"));
    for path in ["office", "office/kept"] {
        let group = database.hierarchy.lookup(&format!("/tenants/{path}")).unwrap();
        group.set_low(60 << 20).unwrap();
    }
    let (large, sort) = (consumer(&kept, "large", true), consumer(&other, "sort", true));
    large.try_grow(60 * MIB).unwrap();
    sort.try_grow(30 * MIB).unwrap();
    let join = consumer(&small, "join", false);
    join.try_grow(20 * MIB).unwrap_err();
    large.try_grow(MIB).expect("all of it is protected, although it is the largest query of its office");
    sort.try_grow(MIB).unwrap_err();
}

#[test]
fn a_group_gives_no_more_than_its_excess() {
    let database = Database::new();
    let (kept, other, small) =
        (database.pool("kept", "1"), database.pool("other", "1"), database.pool("small", "1"));
    kept.group().parent().unwrap().set_low(30 << 20).unwrap();
    let (large, sort) = (consumer(&kept, "large", true), consumer(&other, "sort", true));
    large.try_grow(60 * MIB).unwrap();
    sort.try_grow(20 * MIB).unwrap();
    let join = consumer(&small, "join", false);
    // 51 MiB are missing, more than both may give.
    join.try_grow(71 * MIB).unwrap_err();
    large.try_grow(MIB).unwrap();
    // 41 are missing: 31 of the kept tenant, and the rest of the other one.
    join.try_grow(60 * MIB).unwrap_err();
    large.try_grow(MIB).unwrap_err();
    sort.try_grow(MIB).unwrap_err();
}

#[test]
fn fair_shares_decide_at_each_level() {
    let database = Database::new();
    let office = database.hierarchy.get_or_create("/tenants/office").unwrap();
    office.set_share(8).unwrap();
    office.set_max(90 << 20).unwrap();
    let of = |path: &str| Arc::new(database.pool_of(&format!("/tenants/{path}")));
    let (two, one, small) = (of("office/two/1"), of("office/one/1"), of("small/1"));
    // The one with more weight is within its even share, although it is larger.
    two.group().parent().unwrap().set_weight(400).unwrap();
    let (large, sort) = (consumer(&two, "large", true), consumer(&one, "sort", true));
    large.try_grow(45 * MIB).unwrap();
    sort.try_grow(35 * MIB).unwrap();
    consumer(&small, "join", false).try_grow(30 * MIB).unwrap_err();
    large.try_grow(MIB).expect("it is within its even share");
    sort.try_grow(MIB).unwrap_err();
}

/// Rounds in which a hog holds all but 10 MiB, another query asks for 20, and the hog spills if it
/// is to.
fn spills_of_a_hog(rounds: u32, mut round: impl FnMut(&MemoryReservation)) -> u32 {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let (sort, join) = (consumer(&hog, "sort", true), consumer(&small, "join", false));
    let mut spills = 0;
    for _ in 0..rounds {
        sort.try_grow(90 * MIB - sort.size()).unwrap();
        join.try_grow(20 * MIB).unwrap_err();
        if sort.try_grow(MIB).is_err() {
            spills += 1;
            sort.free();
        } else {
            sort.shrink(MIB);
        }
        round(&join);
    }
    spills
}

#[test]
fn a_query_that_does_not_use_freed_memory_asks_ever_more_seldom() {
    let spills = spills_of_a_hog(1000, |_| {});
    assert_eq!(spills, 10, "the pauses are 1, 2, 4, 8 growths and so on");
}

#[test]
fn a_query_that_uses_freed_memory_asks_again_at_once() {
    let spills = spills_of_a_hog(50, |join| {
        join.try_grow(20 * MIB).unwrap();
        join.free();
    });
    assert_eq!(spills, 50);
}

#[test]
fn a_query_asks_again_while_none_has_spilled_for_it() {
    let database = Database::new();
    let (idle, hog, small) =
        (database.pool("hog", "idle"), database.pool("hog", "2"), database.pool("small", "1"));
    let (first, second) = (consumer(&idle, "sort", true), consumer(&hog, "sort", true));
    first.try_grow(45 * MIB).unwrap();
    second.try_grow(40 * MIB).unwrap();
    let join = consumer(&small, "join", false);
    (0..20).for_each(|_| _ = join.try_grow(30 * MIB).unwrap_err());
    // The first one never grows. Now the second one is the largest.
    second.try_grow(10 * MIB).unwrap();
    join.try_grow(30 * MIB).unwrap_err();
    second.try_grow(MIB).unwrap_err();
}

#[test]
fn a_consumer_is_not_refused_once_there_is_room_again() {
    let database = Database::new();
    let (hog, other, small) =
        (database.pool("hog", "1"), database.pool("other", "1"), database.pool("small", "1"));
    let (sort, large) = (consumer(&hog, "sort", true), consumer(&other, "large", false));
    sort.try_grow(50 * MIB).unwrap();
    large.try_grow(40 * MIB).unwrap();
    let join = consumer(&small, "join", false);
    join.try_grow(30 * MIB).unwrap_err();
    large.free();
    sort.try_grow(MIB).expect("the growth has room");
}

#[test]
fn a_consumer_that_freed_by_itself_is_not_refused() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let (sort, join) = (consumer(&hog, "sort", true), consumer(&small, "join", false));
    sort.try_grow(80 * MIB).unwrap();
    join.try_grow(90 * MIB).unwrap_err();
    sort.shrink(50 * MIB);
    sort.try_grow(MIB).expect("it has given 50 MiB, although the growth needs more");
}

#[test]
fn a_consumer_is_not_refused_for_a_growth_that_was_made() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let (first, second) = (consumer(&hog, "first", true), consumer(&hog, "second", true));
    first.try_grow(40 * MIB).unwrap();
    second.try_grow(40 * MIB).unwrap();
    let join = consumer(&small, "join", false);
    join.try_grow(70 * MIB).unwrap_err();
    drop(first);
    second.shrink(15 * MIB);
    join.try_grow(70 * MIB).unwrap();
    second.try_grow(MIB).expect("the growth was made");
}

#[test]
fn a_consumer_is_not_refused_for_a_query_that_ended() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let sort = consumer(&hog, "sort", true);
    sort.try_grow(80 * MIB).unwrap();
    consumer(&small, "join", false).try_grow(30 * MIB).unwrap_err();
    drop(small);
    sort.try_grow(MIB).unwrap();
}

#[test]
fn consumers_that_are_not_charged_are_not_asked() {
    let database = Database::new();
    let hog = Arc::new(database.pool_of("/tenants/hog/1").uncharged("buffers"));
    let (buffers, sort) = (consumer(&hog, "buffers", true), consumer(&hog, "sort", true));
    buffers.try_grow(80 * MIB).unwrap();
    sort.try_grow(20 * MIB).unwrap();
    let small = database.pool("small", "1");
    let join = consumer(&small, "join", false);
    join.try_grow(101 * MIB - 1).unwrap_err();
    sort.try_grow(MIB).expect("its 20 MiB are all that could be given");
    join.try_grow(90 * MIB).unwrap_err();
    sort.try_grow(MIB).unwrap_err();
}

/// The cost of a growth that is refused beside many queries, below one tenant and below many.
#[test]
#[ignore = "prints figures"]
fn prints_the_cost_of_a_refused_growth_beside_many_queries() {
    const GROWTHS: u32 = 100;
    for (tenants, each) in [(1, 1), (1, 1000), (30, 33)] {
        let database = Database::new();
        let mut others = Vec::new();
        for tenant in 0..tenants {
            for query in 0..each {
                let pool = database.pool(&format!("tenant{tenant}"), &query.to_string());
                let sort = consumer(&pool, "sort", true);
                sort.try_grow((90 << 20) / tenants / each).unwrap();
                others.push((pool, sort));
            }
        }
        let small = database.pool("small", "1");
        let join = consumer(&small, "join", false);
        let begin = Instant::now();
        (0..GROWTHS).for_each(|_| _ = join.try_grow(11 * MIB).unwrap_err());
        let each_growth = begin.elapsed() / GROWTHS;
        println!("{} queries of {tenants} tenants: {each_growth:?} a refused growth", tenants * each);
    }
}
