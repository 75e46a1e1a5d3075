//! Tables of pages, for tests that compare them with the code.

/// Returns the cells of the first table after this text. Neither its head nor the quotes of code are in them.
pub(crate) fn rows_after(page: &str, text: &str) -> Vec<Vec<String>> {
    let (_, rest) = page.split_once(text).unwrap_or_else(|| panic!("the page has no {text:?}"));
    let lines = rest.lines().skip_while(|line| !line.starts_with("|-")).skip(1);
    let cells = |line: &str| {
        let line = line.trim_start_matches("| ").trim_end_matches(" |");
        line.split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let rows: Vec<_> = lines.take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(!rows.is_empty(), "there is no table after {text:?}");
    rows
}

/// Returns what stands in quotes of code.
pub(crate) fn code_in(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}
