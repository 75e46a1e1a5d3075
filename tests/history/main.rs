//! The history checker of the testkit: each rule against hand-made histories, and all rules against stores with a
//! known defect. The contract of modes against such stores as well, and cases in which somebody waits for ever.

mod healthy;
mod latch_rules;
mod lock_modes;
mod lock_rules;
mod logs;
mod mode_mutants;
mod mutants;
mod row_rules;
mod sketch;
mod starved;
mod timeline;
