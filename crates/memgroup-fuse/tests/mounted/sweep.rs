//! A sweep over the charges of groups that a user of the mount makes: each is refused once. The
//! mount itself charges nothing.

use std::fs::{self, File};

use memgroup::{Charge, ChargeErrorKind};
use rustix::event::PollFlags;

use super::mounted;
use super::polls::{poll_now, read};

#[test]
fn sweep_groups_of_a_mount() {
    if !super::can_mount() {
        return;
    }
    xtask::sweep::sweep("groups that are made by mkdir", |run| {
        let Some(m) = mounted() else { panic!("it could be mounted before") };
        let injection = m.hierarchy.root().inject_failures_at(run.refused());
        let mut refused = 0;
        let mut held: Vec<Charge> = Vec::new();
        for (name, bytes) in
            [("a", 1), ("b", 2), ("c", 4), ("a/b", 8), ("a/b/c", 16)].into_iter().cycle().take(15)
        {
            if !m.path(name).exists() {
                fs::create_dir(m.path(name)).unwrap();
                m.write(&format!("{name}/memory.max"), "1M").unwrap();
            }
            let file = File::open(m.path(&format!("{name}/cgroup.events"))).unwrap();
            let group = m.hierarchy.lookup(&format!("/{name}")).unwrap();
            let before = group.usage();
            let populated = |usage: u64| format!("populated {}\nfrozen 0\n", u8::from(usage > 0));
            assert_eq!(read(&file), populated(before));
            match group.try_charge(bytes) {
                Ok(charge) => held.push(charge),
                Err(error) => {
                    assert_eq!(error.kind(), ChargeErrorKind::Injected, "{error}");
                    refused += 1;
                }
            }
            // Each file shows what was charged, and nothing of what was refused.
            let usage = group.usage();
            assert_eq!(m.read(&format!("{name}/memory.current")), format!("{usage}\n"));
            let is_new = (before == 0) != (usage == 0);
            assert_eq!(poll_now(&file).contains(PollFlags::PRI), is_new);
            assert_eq!(read(&file), populated(usage));
            let sum: u64 = held.iter().map(Charge::bytes).sum();
            assert_eq!(m.read("memory.current"), format!("{sum}\n"));
        }
        let charges = injection.drawn();
        assert_eq!((refused, refused > 0), (injection.failed(), run.refuses_any_of(charges)));
        drop(injection);
        // Removed while they hold bytes.
        for name in ["a/b/c", "a/b", "a", "b", "c"] {
            fs::remove_dir(m.path(name)).unwrap();
        }
        drop(held);
        assert_eq!(m.read("memory.current"), "0\n");
        assert_eq!(m.hierarchy.dying(), vec![]);
        fs::create_dir(m.path("a")).unwrap();
        let charge = m.hierarchy.lookup("/a").unwrap().try_charge(7).unwrap();
        assert_eq!(m.read("a/memory.current"), "7\n");
        drop(charge);
        charges
    });
}
