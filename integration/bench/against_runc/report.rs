//! Reports that are printed and kept.

use std::{fs, path::Path};

use integration::Node;

use crate::comparison::{Comparison, median};

/// Prints one run. `stolen`: the share of the processors' time that other machines had.
pub(crate) fn print(node: &Node, run: usize, stolen: f64, results: &[Comparison]) {
    let percent = stolen * 100.0;
    println!(
        "run {}, containerd {}, {percent:.1} % of the processors' time taken by other machines",
        run + 1,
        node.release().version
    );
    for result in results {
        let Comparison { name, unit, columns, aim } = result;
        let verdict = if result.is_met() { "met" } else { "MISSED" };
        let verdict = aim.map_or_else(String::new, |aim| format!("aim {aim:.2}: {verdict}"));
        println!("  {name}  {verdict}");
        for column in columns {
            let (lower, upper) = column.spread;
            println!(
                "    {:<16} {:>9.1} {unit:<3} {:>6.2}x  ({lower:.2} to {upper:.2})",
                column.runtime, column.value, column.ratio
            );
        }
    }
}

/// Prints how many runs met each aim, and egpu's ratios over the runs.
pub(crate) fn summary(runs: &[Vec<Comparison>]) {
    let Some(first) = runs.first() else { return };
    println!("egpu / runc over {} runs: median, lowest to highest; runs that met the aim", runs.len());
    for (place, Comparison { name, aim, .. }) in first.iter().enumerate() {
        let of_name: Vec<&Comparison> = runs.iter().filter_map(|run| run.get(place)).collect();
        let ratios: Vec<f64> = of_name.iter().map(|result| result.egpu().ratio).collect();
        let (lowest, highest) =
            (ratios.iter().copied().fold(f64::MAX, f64::min), ratios.iter().copied().fold(0.0, f64::max));
        let met = of_name.iter().filter(|result| result.is_met()).count();
        let met = aim.map_or_else(String::new, |_| format!("  {met} of {}", runs.len()));
        println!("  {name:<28} {:>5.2}x  {lowest:.2} to {highest:.2}{met}", median(ratios));
    }
}

/// Keeps all runs in `docs/results/bench-VERSION.json`.
pub(crate) fn store(node: &Node, pairs: usize, runs: &[Vec<Comparison>]) {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let document = serde_json::json!({
        "egpu": env!("CARGO_PKG_VERSION"), "containerd": node.release().version,
        "kernel": kernel.trim().split('-').next(), "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "pairs": pairs, "runs": runs,
    });
    let file = concat!("../docs/results/bench-", env!("CARGO_PKG_VERSION"), ".json");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::write(&path, format!("{document:#}\n")).expect("write the results");
    println!("written to {}", path.display());
}
