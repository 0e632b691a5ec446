//! The Huffman code of HPACK (RFC 7541, appendix B), decoded by tables.
//!
//! The code is canonical: among codes of one length, later symbols have later codes, and longer codes follow shorter
//! ones. So the lengths alone define it.

use std::sync::LazyLock;

/// Length of each symbol's code in bits; the last one is the end of the string.
const CODE_LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];
const END_OF_STRING: u16 = 256;
const MAX_CODE_LENGTH: usize = 30;
/// Codes of at most that many bits, which are those of nearly all bytes, are decoded by one look-up.
const SHORT_CODE_LENGTH: usize = 8;

static CODE: LazyLock<HuffmanCode> = LazyLock::new(HuffmanCode::new);

struct HuffmanCode {
    /// Symbol and length of the code that begins with these bits; length 0 for a longer code.
    short: [(u16, u8); 1 << SHORT_CODE_LENGTH],
    /// For each length: the first code that is longer, aligned to the left of 32 bits; the first code; the place of its
    /// symbol.
    lengths: [(u64, u32, u16); MAX_CODE_LENGTH + 1],
    /// Symbols in the order of their codes.
    symbols: [u16; 257],
}

impl HuffmanCode {
    fn new() -> HuffmanCode {
        let mut symbols: [u16; 257] = std::array::from_fn(|symbol| symbol as u16);
        symbols.sort_by_key(|symbol| (CODE_LENGTHS[usize::from(*symbol)], *symbol));
        let mut code =
            HuffmanCode { short: [(0, 0); 1 << SHORT_CODE_LENGTH], lengths: [(0, 0, 0); MAX_CODE_LENGTH + 1], symbols };
        let (mut next, mut place) = (0_u32, 0_usize);
        for length in 1..=MAX_CODE_LENGTH {
            next <<= 1;
            let first = (next, place as u16);
            while place < symbols.len() && usize::from(CODE_LENGTHS[usize::from(symbols[place])]) == length {
                if length <= SHORT_CODE_LENGTH {
                    let shift = SHORT_CODE_LENGTH - length;
                    for rest in 0..1_usize << shift {
                        code.short[(next as usize) << shift | rest] = (symbols[place], length as u8);
                    }
                }
                next += 1;
                place += 1;
            }
            code.lengths[length] = (u64::from(next) << (32 - length), first.0, first.1);
        }
        code
    }

    /// The symbol whose code begins `bits`, which are aligned to the left, and the length of the code.
    fn symbol(&self, bits: u32) -> (u16, usize) {
        let (symbol, length) = self.short[(bits >> (32 - SHORT_CODE_LENGTH)) as usize];
        if length > 0 {
            return (symbol, usize::from(length));
        }
        for length in SHORT_CODE_LENGTH + 1..=MAX_CODE_LENGTH {
            let (end, first, place) = self.lengths[length];
            if u64::from(bits) < end {
                let offset = (bits >> (32 - length)) - first;
                return (self.symbols[usize::from(place) + offset as usize], length);
            }
        }
        // All 30-bit codes are assigned.
        (END_OF_STRING, MAX_CODE_LENGTH)
    }
}

/// Appends the text that `coded` encodes to `out`; false if it is no valid code.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> bool {
    let code = &*CODE;
    // Bits not decoded, aligned to the left, and their number.
    let (mut bits, mut count) = (0_u64, 0_usize);
    let mut input = coded.iter();
    loop {
        while count <= 56 {
            let Some(byte) = input.next() else { break };
            bits |= u64::from(*byte) << (56 - count);
            count += 8;
        }
        if count == 0 {
            return true;
        }
        // Beyond the input: ones, as padding is.
        let window = if count < 64 { bits | u64::MAX >> count } else { bits };
        let (symbol, length) = code.symbol((window >> 32) as u32);
        if length > count {
            // Padding: at most seven bits, all ones.
            return count < 8 && bits >> (64 - count) == (1 << count) - 1;
        }
        if symbol == END_OF_STRING {
            return false;
        }
        out.push(symbol as u8);
        bits <<= length;
        count -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes by the same lengths, with an independent loop over codes.
    fn encode(text: &[u8]) -> Vec<u8> {
        let mut codes = vec![(0_u32, 0_u8); 257];
        let (mut next, mut before) = (0_u32, 5_u8);
        let mut order: Vec<usize> = (0..257).collect();
        order.sort_by_key(|symbol| CODE_LENGTHS[*symbol]);
        for symbol in order {
            next <<= CODE_LENGTHS[symbol] - before;
            before = CODE_LENGTHS[symbol];
            codes[symbol] = (next, before);
            next += 1;
        }
        let mut bits = String::new();
        for byte in text {
            let (code, length) = codes[usize::from(*byte)];
            bits.push_str(&format!("{code:032b}")[32 - usize::from(length)..]);
        }
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        bits.as_bytes()
            .chunks(8)
            .map(|byte| u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap())
            .collect()
    }

    #[test]
    fn huffman_decodes_examples_of_the_rfc() {
        // RFC 7541, C.4.1, C.4.2 and C.6.1.
        for (coded, text) in [
            (&b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..], "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x64\x02", "302"),
            (b"\xae\xc3\x77\x1a\x4b", "private"),
        ] {
            let mut out = Vec::new();
            assert!(decode(coded, &mut out));
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn huffman_decodes_every_byte_and_the_reference_agrees() {
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        let mut out = Vec::new();
        assert!(decode(&encode(&all), &mut out));
        assert_eq!(out, all);
        bolero::check!().with_iterations(3000).with_max_len(40).for_each(|bytes: &[u8]| {
            let mut out = Vec::new();
            let decoded = decode(bytes, &mut out).then_some(out);
            let reference = loona_hpack::huffman::HuffmanDecoder::new().decode(bytes).ok();
            assert_eq!(decoded, reference, "{bytes:x?}");
        });
    }

    #[test]
    fn huffman_refuses_invalid_padding() {
        for coded in [&[0xff][..], &[0xff; 4], &[0x1f, 0xff], &[0x18]] {
            assert!(!decode(coded, &mut Vec::new()), "{coded:x?}");
        }
    }
}
