//! The history checker of the testkit: each rule against hand-made histories, and all rules against stores with a
//! known defect.

mod healthy;
mod latch_rules;
mod lock_rules;
mod logs;
mod mutants;
mod row_rules;
mod sketch;
mod timeline;
