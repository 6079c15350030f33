//! The orders: the content of each batch, and the expected content of the database after all
//! merges.
//!
//! A batch is a pure function of its number, so that every run loads the same data. The totals are
//! computed here by folding the batches, without SQL.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

/// Number of order files.
pub(crate) const BATCHES: u32 = 10;

/// Order ids of batch n start at n times this number.
const IDS_PER_BATCH: u32 = 100_000;
const CUSTOMERS: u64 = 5_000;
const DAYS: u64 = 90;
/// One row in this many corrects an order of an earlier batch.
const ROWS_PER_CORRECTION: u32 = 20;

/// Names that are difficult in CSV files, and prices in cents.
const PRODUCTS: [(&str, u64); 12] = [
    ("pencil", 120),
    ("notebook, ruled", 450),
    ("eraser", 80),
    ("27\" monitor", 24_900),
    ("keyboard", 5_900),
    ("desk lamp", 3_450),
    ("chair, \"ergonomic\"", 18_900),
    ("stapler", 890),
    ("crème brûlée kit", 2_750),
    ("coffee, 1 kg", 1_690),
    ("mug", 990),
    ("envelopes (100)", 640),
];

/// One row of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    id: u32,
    /// Number of the batch that contains this row. The row with the highest version wins.
    version: u32,
    customer: u64,
    product: usize,
    quantity: u64,
    cents: u64,
    /// Days since the first of January.
    day: u64,
}

/// Expected content of the database at the end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) orders: u64,
    pub(crate) customers: u64,
    pub(crate) days: u64,
    pub(crate) cents: u64,
    /// Orders and cents by product.
    pub(crate) products: BTreeMap<&'static str, (u64, u64)>,
}

/// Returns every order of batch `number`, starting from 1.
pub(crate) fn batch(number: u32) -> Vec<Order> {
    let mut random = SplitMix(u64::from(number));
    let corrections = if number == 1 { 0 } else { size(number) / ROWS_PER_CORRECTION };
    let corrected = (0..corrections).map(|n| {
        // The n-th order of an earlier batch. These orders are distinct, because n differs.
        let earlier = 1 + n % (number - 1);
        earlier * IDS_PER_BATCH + n
    });
    let own = (corrections..size(number)).map(|n| number * IDS_PER_BATCH + n - corrections);
    own.chain(corrected).map(|id| order(id, number, &mut random)).collect()
}

/// Formats the batch as a CSV file for COPY.
pub(crate) fn csv(orders: &[Order]) -> String {
    let mut text = String::from(
        "order_id,version,customer_id,customer_name,product_id,product_name,quantity,cents,\
         ordered_on\n",
    );
    for order in orders {
        let Order { id, version, customer, product, quantity, cents, day } = order;
        let name = PRODUCTS[*product].0.replace('"', "\"\"");
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{id},{version},{customer},\"O'Hara & Sons, no. {customer}\",{},\"{name}\",{quantity},\
             {cents},{}",
            product + 1,
            date(*day)
        );
    }
    text
}

/// Returns the totals over batches, independent of the merge order.
pub(crate) fn expected<'a>(orders: impl Iterator<Item = &'a Order>) -> Expected {
    let mut latest: HashMap<u32, &Order> = HashMap::new();
    let mut customers = BTreeSet::new();
    for order in orders {
        // Includes customers whose only order was later reassigned to another customer.
        customers.insert(order.customer);
        let kept = latest.entry(order.id).or_insert(order);
        if kept.version < order.version {
            *kept = order;
        }
    }
    let mut products = BTreeMap::new();
    for order in latest.values() {
        let (orders, cents) = products.entry(PRODUCTS[order.product].0).or_insert((0, 0));
        *orders += 1;
        *cents += order.cents;
    }
    Expected {
        orders: latest.len() as u64,
        customers: customers.len() as u64,
        days: latest.values().map(|order| order.day).collect::<BTreeSet<_>>().len() as u64,
        cents: latest.values().map(|order| order.cents).sum(),
        products,
    }
}

/// Returns the number of rows of a batch: 10,000 to 20,000.
fn size(number: u32) -> u32 {
    10_000 + number * 7_919 % 10_000
}

fn order(id: u32, version: u32, random: &mut SplitMix) -> Order {
    let product = usize::try_from(random.below(PRODUCTS.len() as u64)).unwrap_or_default();
    let quantity = 1 + random.below(9);
    Order {
        id,
        version,
        customer: 1 + random.below(CUSTOMERS),
        product,
        quantity,
        cents: quantity * PRODUCTS[product].1 + random.below(100),
        day: random.below(DAYS),
    }
}

/// Formats a date within the first 90 days of a common year.
fn date(day: u64) -> String {
    let (month, day) = match day {
        0..31 => (1, day),
        31..59 => (2, day - 31),
        _ => (3, day - 59),
    };
    format!("2026-{month:02}-{:02}", day + 1)
}

/// SplitMix64 (Steele, Lea, Flood, 2014), implemented here because a library's generator may return
/// other numbers in its next version.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches() -> Vec<Vec<Order>> {
        (1..=BATCHES).map(batch).collect()
    }

    #[test]
    fn every_run_makes_the_same_orders() {
        assert_eq!(batches(), batches());
    }

    #[test]
    fn an_order_occurs_at_most_once_in_a_batch() {
        for orders in batches() {
            let ids: BTreeSet<u32> = orders.iter().map(|order| order.id).collect();
            assert_eq!(ids.len(), orders.len());
        }
    }

    #[test]
    fn later_batches_correct_orders_of_earlier_ones() {
        let mut known = BTreeSet::new();
        for (orders, number) in batches().iter().zip(1..) {
            let (own, corrected): (Vec<&Order>, Vec<&Order>) =
                orders.iter().partition(|order| order.id / IDS_PER_BATCH == number);
            assert!(corrected.iter().all(|order| known.contains(&order.id)));
            assert_eq!(corrected.is_empty(), number == 1);
            known.extend(own.iter().map(|order| order.id));
        }
    }

    #[test]
    fn the_order_of_the_batches_does_not_change_the_totals() {
        let batches = batches();
        let forwards = expected(batches.iter().flatten());
        assert_eq!(forwards, expected(batches.iter().rev().flatten()));
        let (orders, cents) =
            forwards.products.values().fold((0, 0), |sum, (n, cents)| (sum.0 + n, sum.1 + cents));
        assert_eq!((orders, cents), (forwards.orders, forwards.cents));
        assert!(forwards.orders < batches.iter().map(Vec::len).sum::<usize>() as u64);
    }

    #[test]
    fn a_row_is_quoted_as_csv() {
        let order =
            Order { id: 7, version: 2, customer: 5, product: 3, quantity: 1, cents: 9, day: 59 };
        let text = csv(&[order]);
        assert_eq!(
            text.lines().nth(1),
            Some(r#"7,2,5,"O'Hara & Sons, no. 5",4,"27"" monitor",1,9,2026-03-01"#)
        );
    }

    #[test]
    fn days_are_dates() {
        assert_eq!(
            [0, 30, 31, 58, 59, 89].map(date),
            ["2026-01-01", "2026-01-31", "2026-02-01", "2026-02-28", "2026-03-01", "2026-03-31"]
        );
    }
}
