-- Questions about many jobs, for DuckDB and Spark SQL. docs/fleet.md says how to ask them. Sizes are in bytes.

-- odd_rank_out: processes whose peak differs by more than a tenth from the usual one of their job
with processes as (
    select job, rank, host, pid, started_at, sum(peak_allocated_bytes) as peak_bytes
    from devices group by job, rank, host, pid, started_at
), jobs as (
    select job, median(peak_bytes) as usual_bytes, count(*) as processes from processes group by job
)
select processes.job, rank, host, pid, peak_bytes, usual_bytes, peak_bytes / usual_bytes as ratio
from processes join jobs on processes.job = jobs.job
where jobs.processes >= 4 and abs(peak_bytes - usual_bytes) > 0.1 * usual_bytes
order by abs(peak_bytes - usual_bytes) desc, processes.job, rank;

-- waste_by_job: bytes that a job obtained and never needed for allocations, at the peaks of its processes
select job, count(*) as rows_of_devices, sum(peak_reserved_bytes) as reserved_bytes,
    sum(peak_reserved_bytes - peak_allocated_bytes) as wasted_bytes,
    sum(peak_reserved_bytes - peak_allocated_bytes) / sum(peak_reserved_bytes) as share
from devices group by job having sum(peak_reserved_bytes) > 0
order by wasted_bytes desc, job;

-- failures_by_verdict: why requests failed, and how many of these failures ended a job
select verdict, count(*) as failures, sum(case when fatal then 1 else 0 end) as fatal_failures,
    count(distinct job) as jobs, max(requested_bytes) as largest_request_bytes
from failures group by verdict
order by failures desc, verdict;

-- fits_a_smaller_card: jobs whose largest peak, with 1 GiB for contexts and a tenth to spare, fits a smaller card
with jobs as (
    select job, max(device_bytes) as has_bytes, 1.1 * max(peak_reserved_bytes) + 1073741824 as needs_bytes
    from devices where device_bytes is not null group by job
), cards as (
    select 1073741824.0 * gib as card_bytes, gib from (values (8), (12), (16), (24), (32), (40), (48), (80), (96), (141)) as sizes(gib)
)
select jobs.job, has_bytes, needs_bytes, min(gib) as card_gib
from jobs join cards on card_bytes >= needs_bytes and card_bytes < 0.9 * has_bytes
where not exists (select 1 from failures where failures.job = jobs.job)
group by jobs.job, has_bytes, needs_bytes
order by has_bytes - needs_bytes desc, jobs.job;

-- failures_together: failures on several machines within two minutes, and what they had in common (null: not the same)
with near as (
    select first.failed_at as began_at, other.*
    from failures first join failures other
        on other.failed_at >= first.failed_at and other.failed_at <= first.failed_at + interval '2' minute
    where not exists (
        select 1 from failures before
        where before.failed_at < first.failed_at and before.failed_at >= first.failed_at - interval '2' minute)
)
select began_at, count(*) as failures, count(distinct host) as machines, count(distinct job) as jobs,
    case when count(distinct job) = 1 then min(job) end as same_job,
    case when count(distinct verdict) = 1 then min(verdict) end as same_verdict,
    case when count(distinct driver) = 1 and count(driver) = count(*) then min(driver) end as same_driver
from near group by began_at having count(distinct host) > 1
order by began_at;
