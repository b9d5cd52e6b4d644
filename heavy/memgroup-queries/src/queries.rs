//! The tenants, and the SQL that their connections run.

use std::time::Duration;

/// A tenant: its queries, which each connection runs one after the other.
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    /// Numbers of TPC-H queries. Empty for the runaway.
    numbers: &'static [u32],
    pub(crate) connections: usize,
    /// Pause of a connection between two queries.
    pub(crate) pause: Duration,
}

/// A small tenant, one of joins, one with the heaviest queries, and a runaway, whose queries want
/// several times the memory that there is.
pub(crate) const TENANTS: [Tenant; 4] = [
    Tenant { name: "dashboards", numbers: &[1, 6, 14], connections: 1, pause: Duration::from_millis(50) },
    Tenant { name: "reports", numbers: &[3, 5, 10, 12], connections: 1, pause: Duration::from_millis(50) },
    Tenant { name: "analysts", numbers: &[9, 18, 21], connections: 2, pause: Duration::ZERO },
    Tenant { name: "runaway", numbers: &[], connections: 1, pause: Duration::ZERO },
];

/// What a runaway runs: an aggregate and a sort, which can spill, and a join, which cannot.
const RUNAWAY: [&str; 3] = [
    // Nearly as many groups as rows.
    "select count(*) as groups, max(lines) as most
     from (select l_orderkey, l_partkey, l_comment, count(*) as lines from lineitem
           group by l_orderkey, l_partkey, l_comment)",
    "select max(place) as places, max(l_comment) as last
     from (select l_comment,
                  row_number() over (order by l_comment, l_orderkey, l_linenumber) as place
           from lineitem)",
    // Each row with itself.
    "select count(*) as pairs, max(one.l_comment || other.l_comment) as last
     from lineitem one join lineitem other
       on one.l_orderkey = other.l_orderkey and one.l_linenumber = other.l_linenumber",
];

impl Tenant {
    pub(crate) fn is_runaway(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The queries of one connection, in turns without end. Connections begin with different ones.
    pub(crate) fn queries(&self, connection: usize) -> impl Iterator<Item = &'static str> + Send {
        let all: Vec<&str> = match self.numbers {
            [] => RUNAWAY.to_vec(),
            numbers => numbers.iter().filter_map(|&number| memgroup_tpch::query(number)).collect(),
        };
        all.into_iter().cycle().skip(connection)
    }
}
