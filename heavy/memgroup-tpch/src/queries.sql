-- The 22 queries of TPC-H with the parameters of its validation run, a comment with the number before each.

-- 1
select l_returnflag, l_linestatus, sum(l_quantity) as quantity, sum(l_extendedprice) as base,
       sum(l_extendedprice * (1 - l_discount)) as discounted,
       sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as charged,
       avg(l_quantity) as mean_quantity, avg(l_extendedprice) as mean_price, avg(l_discount) as mean_discount,
       count(*) as orders
from lineitem
where l_shipdate <= date '1998-09-02'
group by l_returnflag, l_linestatus
order by l_returnflag, l_linestatus

-- 2
select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
from part
join partsupp on ps_partkey = p_partkey
join supplier on s_suppkey = ps_suppkey
join nation on n_nationkey = s_nationkey
join region on r_regionkey = n_regionkey
where p_size = 15 and p_type like '%BRASS' and r_name = 'EUROPE'
  and ps_supplycost = (
    select min(ps_supplycost)
    from partsupp
    join supplier on s_suppkey = ps_suppkey
    join nation on n_nationkey = s_nationkey
    join region on r_regionkey = n_regionkey
    where ps_partkey = p_partkey and r_name = 'EUROPE')
order by s_acctbal desc, n_name, s_name, p_partkey
limit 100

-- 3
select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
from customer
join orders on o_custkey = c_custkey
join lineitem on l_orderkey = o_orderkey
where c_mktsegment = 'BUILDING' and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
group by l_orderkey, o_orderdate, o_shippriority
order by revenue desc, o_orderdate, l_orderkey
limit 10

-- 4
select o_orderpriority, count(*) as orders
from orders
where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-10-01'
  and exists (select * from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
group by o_orderpriority
order by o_orderpriority

-- 5
select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
from customer
join orders on o_custkey = c_custkey
join lineitem on l_orderkey = o_orderkey
join supplier on s_suppkey = l_suppkey and s_nationkey = c_nationkey
join nation on n_nationkey = s_nationkey
join region on r_regionkey = n_regionkey
where r_name = 'ASIA' and o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01'
group by n_name
order by revenue desc

-- 6
select sum(l_extendedprice * l_discount) as revenue
from lineitem
where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
  and l_discount between 0.05 and 0.07 and l_quantity < 24

-- 7
select supplying, buying, year, sum(volume) as revenue
from (
    select one.n_name as supplying, other.n_name as buying, extract(year from l_shipdate) as year,
           l_extendedprice * (1 - l_discount) as volume
    from supplier
    join lineitem on l_suppkey = s_suppkey
    join orders on o_orderkey = l_orderkey
    join customer on c_custkey = o_custkey
    join nation one on one.n_nationkey = s_nationkey
    join nation other on other.n_nationkey = c_nationkey
    where ((one.n_name = 'FRANCE' and other.n_name = 'GERMANY') or (one.n_name = 'GERMANY' and other.n_name = 'FRANCE'))
      and l_shipdate between date '1995-01-01' and date '1996-12-31') as shipping
group by supplying, buying, year
order by supplying, buying, year

-- 8
select year, sum(case when nation = 'BRAZIL' then volume else 0 end) / sum(volume) as share
from (
    select extract(year from o_orderdate) as year, l_extendedprice * (1 - l_discount) as volume, other.n_name as nation
    from part
    join lineitem on l_partkey = p_partkey
    join supplier on s_suppkey = l_suppkey
    join orders on o_orderkey = l_orderkey
    join customer on c_custkey = o_custkey
    join nation one on one.n_nationkey = c_nationkey
    join nation other on other.n_nationkey = s_nationkey
    join region on r_regionkey = one.n_regionkey
    where r_name = 'AMERICA' and o_orderdate between date '1995-01-01' and date '1996-12-31'
      and p_type = 'ECONOMY ANODIZED STEEL') as sold
group by year
order by year

-- 9
select nation, year, sum(amount) as profit
from (
    select n_name as nation, extract(year from o_orderdate) as year,
           l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity as amount
    from part
    join lineitem on l_partkey = p_partkey
    join supplier on s_suppkey = l_suppkey
    join partsupp on ps_suppkey = l_suppkey and ps_partkey = l_partkey
    join orders on o_orderkey = l_orderkey
    join nation on n_nationkey = s_nationkey
    where p_name like '%green%') as sold
group by nation, year
order by nation, year desc

-- 10
select c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) as revenue, c_acctbal, n_name, c_address, c_phone, c_comment
from customer
join orders on o_custkey = c_custkey
join lineitem on l_orderkey = o_orderkey
join nation on n_nationkey = c_nationkey
where o_orderdate >= date '1993-10-01' and o_orderdate < date '1994-01-01' and l_returnflag = 'R'
group by c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
order by revenue desc, c_custkey
limit 20

-- 11
select ps_partkey, sum(ps_supplycost * ps_availqty) as worth
from partsupp
join supplier on s_suppkey = ps_suppkey
join nation on n_nationkey = s_nationkey
where n_name = 'GERMANY'
group by ps_partkey
having sum(ps_supplycost * ps_availqty) > (
    select sum(ps_supplycost * ps_availqty) * 0.001
    from partsupp
    join supplier on s_suppkey = ps_suppkey
    join nation on n_nationkey = s_nationkey
    where n_name = 'GERMANY')
order by worth desc, ps_partkey

-- 12
select l_shipmode,
       sum(case when o_orderpriority in ('1-URGENT', '2-HIGH') then 1 else 0 end) as urgent,
       sum(case when o_orderpriority in ('1-URGENT', '2-HIGH') then 0 else 1 end) as other
from orders
join lineitem on l_orderkey = o_orderkey
where l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate and l_shipdate < l_commitdate
  and l_receiptdate >= date '1994-01-01' and l_receiptdate < date '1995-01-01'
group by l_shipmode
order by l_shipmode

-- 13
select orders, count(*) as customers
from (
    select c_custkey, count(o_orderkey) as orders
    from customer
    left join orders on o_custkey = c_custkey and o_comment not like '%special%requests%'
    group by c_custkey) as counted
group by orders
order by customers desc, orders desc

-- 14
select 100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0 end)
       / sum(l_extendedprice * (1 - l_discount)) as promoted
from lineitem
join part on p_partkey = l_partkey
where l_shipdate >= date '1995-09-01' and l_shipdate < date '1995-10-01'

-- 15
with revenue as (
    select l_suppkey as supplier, sum(l_extendedprice * (1 - l_discount)) as total
    from lineitem
    where l_shipdate >= date '1996-01-01' and l_shipdate < date '1996-04-01'
    group by l_suppkey)
select s_suppkey, s_name, s_address, s_phone, total
from supplier
join revenue on supplier = s_suppkey
where total = (select max(total) from revenue)
order by s_suppkey

-- 16
select p_brand, p_type, p_size, count(distinct ps_suppkey) as suppliers
from partsupp
join part on p_partkey = ps_partkey
where p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%' and p_size in (49, 14, 23, 45, 19, 3, 36, 9)
  and ps_suppkey not in (select s_suppkey from supplier where s_comment like '%Customer%Complaints%')
group by p_brand, p_type, p_size
order by suppliers desc, p_brand, p_type, p_size

-- 17
select sum(l_extendedprice) / 7.0 as yearly
from lineitem
join part on p_partkey = l_partkey
where p_brand = 'Brand#23' and p_container = 'MED BOX'
  and l_quantity < (select 0.2 * avg(l_quantity) from lineitem where l_partkey = p_partkey)

-- 18
select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) as quantity
from customer
join orders on o_custkey = c_custkey
join lineitem on l_orderkey = o_orderkey
where o_orderkey in (select l_orderkey from lineitem group by l_orderkey having sum(l_quantity) > 300)
group by c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
order by o_totalprice desc, o_orderdate, o_orderkey
limit 100

-- 19
select sum(l_extendedprice * (1 - l_discount)) as revenue
from lineitem
join part on p_partkey = l_partkey
where l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON'
  and ((p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
        and l_quantity between 1 and 11 and p_size between 1 and 5)
    or (p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
        and l_quantity between 10 and 20 and p_size between 1 and 10)
    or (p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
        and l_quantity between 20 and 30 and p_size between 1 and 15))

-- 20
select s_name, s_address
from supplier
join nation on n_nationkey = s_nationkey
where n_name = 'CANADA'
  and s_suppkey in (
    select ps_suppkey
    from partsupp
    where ps_partkey in (select p_partkey from part where p_name like 'forest%')
      and ps_availqty > (
        select 0.5 * sum(l_quantity)
        from lineitem
        where l_partkey = ps_partkey and l_suppkey = ps_suppkey
          and l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'))
order by s_name

-- 21
select s_name, count(*) as waited
from supplier
join lineitem late on late.l_suppkey = s_suppkey
join orders on o_orderkey = late.l_orderkey
join nation on n_nationkey = s_nationkey
where o_orderstatus = 'F' and late.l_receiptdate > late.l_commitdate and n_name = 'SAUDI ARABIA'
  and exists (select * from lineitem near where near.l_orderkey = late.l_orderkey and near.l_suppkey <> late.l_suppkey)
  and not exists (
    select * from lineitem also
    where also.l_orderkey = late.l_orderkey and also.l_suppkey <> late.l_suppkey and also.l_receiptdate > also.l_commitdate)
group by s_name
order by waited desc, s_name
limit 100

-- 22
select code, count(*) as customers, sum(c_acctbal) as balance
from (
    select substr(c_phone, 1, 2) as code, c_acctbal
    from customer
    where substr(c_phone, 1, 2) in ('13', '31', '23', '29', '30', '18', '17')
      and c_acctbal > (
        select avg(c_acctbal) from customer
        where c_acctbal > 0.00 and substr(c_phone, 1, 2) in ('13', '31', '23', '29', '30', '18', '17'))
      and not exists (select * from orders where o_custkey = c_custkey)) as idle
group by code
order by code
