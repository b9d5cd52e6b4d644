//! Queries: the SQL that a tenant's connection runs, one after the other.

use crate::run::spec::{Kind, TenantSpec};

/// Queries of a runaway, which want more memory the larger `lineitem` is: an aggregate and a sort, which can spill, and a join, which cannot.
const RUNAWAY: [&str; 3] = [AGGREGATE, SORT, JOIN];

/// Nearly as many groups as rows.
const AGGREGATE: &str = "
select count(*) as groups, max(lines) as most
from (select l_orderkey, l_partkey, l_comment, count(*) as lines from lineitem group by l_orderkey, l_partkey, l_comment)";

const SORT: &str = "
select max(place) as places, max(l_comment) as last
from (select l_comment, row_number() over (order by l_comment, l_orderkey, l_linenumber) as place from lineitem)";

/// Each row with itself.
const JOIN: &str = "
select count(*) as pairs, max(one.l_comment || other.l_comment) as last
from lineitem one join lineitem other on one.l_orderkey = other.l_orderkey and one.l_linenumber = other.l_linenumber";

/// The queries of one connection, in turns without end.
pub(super) struct Queries {
    all: Vec<&'static str>,
    next: usize,
}

impl Queries {
    /// Those of connection `number` of a tenant. The seed chooses the first.
    pub(super) fn of(tenant: &TenantSpec, number: u32, seed: u64) -> Queries {
        let all = match tenant.workload {
            Kind::Queries => {
                tenant.queries.iter().filter_map(|&number| memgroup_tpch::query(number)).collect()
            }
            _ => RUNAWAY.to_vec(),
        };
        let next = (seed.wrapping_add(number.into()) % all.len() as u64) as usize;
        Queries { all, next }
    }
}

impl Iterator for Queries {
    type Item = &'static str;

    fn next(&mut self) -> Option<&'static str> {
        let sql = self.all[self.next];
        self.next = (self.next + 1) % self.all.len();
        Some(sql)
    }
}
