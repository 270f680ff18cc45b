use super::*;

fn root(bytes: &[u8]) -> Value {
    Pickle::read(bytes).unwrap().root
}

fn refused(bytes: &[u8]) -> String {
    Pickle::read(bytes).unwrap_err().to_string()
}

#[test]
fn numbers_are_read_in_each_spelling() {
    for (bytes, value) in [
        (&b"K\xff."[..], Value::Number(255)),
        (b"M\x01\x02.", Value::Number(513)),
        (b"J\xfb\xff\xff\xff.", Value::Negative(-5)),
        (b"\x8a\x00.", Value::Number(0)),
        (b"\x8a\x01\xff.", Value::Negative(-1)),
        (b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0.", Value::Number(u64::MAX)),
        (b"\x8b\x09\0\0\0\0\0\0\0\0\0\0\0\x01.", Value::Other),
    ] {
        assert_eq!(root(bytes), value, "{bytes:?}");
    }
}

#[test]
fn texts_are_read_in_each_spelling_and_kept_once() {
    let page = Pickle::read(b"(X\x02\0\0\0\xc3\xa9\x8c\x02\xc3\xa9l.").unwrap();
    let Value::List(number) = page.root else {
        panic!("{page:?}")
    };
    assert_eq!(page.list(number), [Value::Text(0); 2]);
    assert_eq!(&**page.text(0), "é");
}

#[test]
fn long_integers_are_refused_by_name_and_place() {
    let long = [b"\x80\x04\x8b\x00\x00\x10\x00".as_slice(), &[0x7f; 1 << 20], b"."].concat();
    assert_eq!(
        refused(&long),
        "byte 2: LONG4 is an integer of 1048576 bytes: PyTorch writes none of more than 16"
    );
    assert!(refused(&[b"\x8a\x11".as_slice(), &[1; 17], b"."].concat()).starts_with("byte 0: LONG1"));
    assert!(refused(b"\x8b\xfb\xff\xff\xff.").contains("4294967291 bytes"));
}

#[test]
fn places_that_skip_are_refused() {
    assert!(refused(b"Nr\xff\xff\xff\xff.").starts_with("byte 1: keeps a value at a place beyond 2621"));
    assert!(refused(b"h\x07.").contains("names place 7 of the memo"));
}

#[test]
fn more_than_a_file_of_its_size_can_hold_is_refused() {
    let many = |code: &[u8]| refused(&[b"N".as_slice(), &code.repeat(4 << 20), b"."].concat());
    assert!(many(b"(").contains("nested more than 256 deep"));
    for code in [&b"]"[..], b"\x85", b"}"] {
        assert!(many(code).contains("lists and dictionaries"), "{code:?}");
    }
    for code in [&b"2"[..], b"N"] {
        assert!(many(code).contains("values wait"), "{code:?}");
    }
    assert!(many(b"\x94").contains("keeps a value"));
}

#[test]
fn a_list_may_contain_itself_and_be_named_often() {
    let page = Pickle::read(b"\x80\x04]\x94(h\0h\0e.").unwrap();
    assert_eq!((page.root, page.list(0)), (Value::List(0), &[Value::List(0); 2][..]));
}

#[test]
fn values_that_are_not_there_and_other_kinds_are_refused() {
    for (bytes, words) in [
        (&b""[..], "byte 0: the file ends"),
        (b".", EMPTY_STACK),
        (b"(a.", EMPTY_STACK),
        (b"](.", EMPTY_STACK),
        (b"e.", "a mark that is not there"),
        (b"NNa.", "no list"),
        (b"NNNs.", "no dictionary"),
        (b"}(Nu.", "without a value"),
        (b"cos\nsystem\n.", "byte 0: 0x63 is no opcode of plain values"),
        (b"I5\n.", "0x49 is no opcode"),
        (b"\x80\x06N.", "protocol 6"),
        (b"N.N", "more bytes follow"),
        (b"\xff", "0xff is no opcode"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fx.", "the file ends"),
    ] {
        assert!(refused(bytes).contains(words), "{bytes:?}: {}", refused(bytes));
    }
}
