//! Dates as templates ask for them: `strftime_now('%d %B %Y')`. In UTC, so that all routers say the same.

/// A moment, taken apart.
struct Moment {
    year: i64,
    month: u32,
    day: u32,
    /// Of the year, from 1.
    day_of_year: u32,
    /// From Sunday.
    weekday: usize,
    /// Of the day.
    second: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A date as C's `strftime` writes it in the C locale, as far as templates use it.
///
/// # Errors
/// The directive that is not known.
pub(super) fn strftime(format: &str, seconds_since_1970: u64) -> Result<String, String> {
    let moment = Moment::new(seconds_since_1970);
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(letter) = rest.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let mut directive = rest.next();
        let bare = directive == Some('-');
        if bare {
            directive = rest.next();
        }
        let directive = directive.unwrap_or('%');
        let part = moment
            .part(directive)
            .ok_or_else(|| format!("`%{directive}` is not supported in a date"))?;
        text.push_str(match part.trim_start_matches('0') {
            _ if !bare => &part,
            "" => "0",
            short => short,
        });
    }
    Ok(text)
}

impl Moment {
    /// By Howard Hinnant's `civil_from_days`: years that begin in March have their leap day at the end.
    fn new(seconds: u64) -> Self {
        let days = i64::try_from(seconds / 86_400).unwrap_or(i64::MAX / 2);
        let shifted = days + 719_468;
        let era = shifted / 146_097;
        let of_era = shifted % 146_097;
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let from_march = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * from_march + 2) / 153;
        let small = |value: i64| u32::try_from(value).unwrap_or_default();
        let day = small(from_march - (153 * shifted_month + 2) / 5 + 1);
        let month = small(if shifted_month < 10 {
            shifted_month + 3
        } else {
            shifted_month - 9
        });
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize % 13 - 1];
        Self {
            year,
            month,
            day,
            day_of_year: before + day + u32::from(leap && month > 2),
            weekday: usize::try_from((days + 4) % 7).unwrap_or_default(),
            second: u32::try_from(seconds % 86_400).unwrap_or_default(),
        }
    }

    fn part(&self, directive: char) -> Option<String> {
        let (hour, minute) = (self.second / 3_600, self.second / 60 % 60);
        let month = MONTHS.get(self.month as usize - 1).copied().unwrap_or_default();
        let day = DAYS[self.weekday];
        let two = |value: u32| format!("{value:02}");
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => two(self.month),
            'd' => two(self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => day.to_owned(),
            'a' => day[..3].to_owned(),
            'w' => self.weekday.to_string(),
            'H' => two(hour),
            'I' => two((hour + 11) % 12 + 1),
            'M' => two(minute),
            'S' => two(self.second % 60),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => format!("{hour:02}:{minute:02}:{:02}", self.second % 60),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "Thursday 01 January 1970, day 001"),
            (951_782_400, "Tuesday 29 February 2000, day 060"),
            (951_868_800, "Wednesday 01 March 2000, day 061"),
            (1_721_952_000, "Friday 26 July 2024, day 208"),
            (1_735_603_200, "Tuesday 31 December 2024, day 366"),
            (4_107_542_400, "Monday 01 March 2100, day 060"),
        ] {
            assert_eq!(strftime("%A %d %B %Y, day %j", seconds).as_deref(), Ok(date));
        }
    }

    #[test]
    fn directives_are_those_of_c() {
        let at = 1_709_283_909;
        assert_eq!(
            strftime("%a %-d %b '%y %F %T %I:%M %p 100%%", at).as_deref(),
            Ok("Fri 1 Mar '24 2024-03-01 09:05:09 09:05 AM 100%")
        );
        assert_eq!(strftime("%-H:%-M", 0).as_deref(), Ok("0:0"));
        let refused = strftime("%Q", at).expect_err("unknown");
        assert!(refused.contains("%Q"), "{refused}");
    }
}
