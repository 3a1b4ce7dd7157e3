//! Sizes and times in the form that users write.

use std::time::Duration;

/// Parses bytes: `512MiB`, `8G`, `4096`. Powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = text[digits..].trim().to_ascii_lowercase();
    let shift = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("{text:?} is no size; write for example 512MiB or 8GiB")),
    };
    let n: f64 = text[..digits]
        .parse()
        .map_err(|_| format!("{text:?} is no size; write for example 512MiB or 8GiB"))?;
    Ok((n * (1u64 << shift) as f64) as u64)
}

/// Parses a time of a second to a day: `90s`, `5m`, `1h`.
pub fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time from 1s to 24h; write for example 90s or 5m");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[digits..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    match text[..digits].parse::<u64>().ok().and_then(|n| n.checked_mul(unit)) {
        Some(s) if (1..=86400).contains(&s) => Ok(Duration::from_secs(s)),
        _ => Err(wrong()),
    }
}

/// Formats a size for users.
pub fn show(bytes: u64) -> String {
    match bytes {
        b if b >= 10 << 30 => format!("{} GiB", b >> 30),
        b if b >= 1 << 30 => format!("{:.1} GiB", b as f64 / (1 << 30) as f64),
        b if b >= 1 << 20 => format!("{:.1} MiB", b as f64 / (1 << 20) as f64),
        b if b >= 1 << 10 || b == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}

/// A share of the far memory (`25%`) or a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Local {
    Bytes(u64),
    Percent(f64),
}

impl std::str::FromStr for Local {
    type Err = String;

    fn from_str(text: &str) -> Result<Local, String> {
        match text.strip_suffix('%') {
            Some(n) => match n.parse::<f64>() {
                Ok(p) if p > 0.0 && p <= 100.0 => Ok(Local::Percent(p)),
                _ => Err(format!("{text:?} is no share; write for example 25%")),
            },
            None => parse(text).map(Local::Bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1k", 1024),
            ("128MiB", 128 << 20),
            ("1.5G", 3 << 29),
            ("8GiB", 8 << 30),
            ("2 MB", 2 << 20),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "MiB", "12 apples", "-4k", "1..2G", "1kbb", "1MiBiB", "1ib", "1ki", "1 k b"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for (text, seconds) in [("1s", 1), ("90s", 90), ("5m", 300), ("24h", 86400)] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in [
            "",
            "s",
            "60",
            "0s",
            "-1s",
            "1.5m",
            "25h",
            "5 minutes",
            "99999999999999999999s",
            "5124095576030432h",
        ] {
            assert!(time(bad).is_err(), "{bad}");
        }
        let sizes = [0, 25, 4096, 3 << 19, 3 << 29, 12 << 30].map(show);
        assert_eq!(sizes, ["0 KiB", "25 bytes", "4 KiB", "1.5 MiB", "1.5 GiB", "12 GiB"]);
        assert_eq!("12.5%".parse(), Ok(Local::Percent(12.5)));
        assert!("0%".parse::<Local>().is_err() && "101%".parse::<Local>().is_err());
    }
}
