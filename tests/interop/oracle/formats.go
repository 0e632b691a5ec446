package main

import (
	"encoding/json"
	"strings"
)

// number is a number as it is written.
type number = json.Number

type formatTable struct {
	format, valueType string
	values            []any
}

func stringsOf(texts ...string) []any {
	values := make([]any, 0, len(texts))
	for _, text := range texts {
		values = append(values, text)
	}
	return values
}

var formatTables = []formatTable{
	{"bsonobjectid", "", stringsOf("507f1f77bcf86cd799439011", "507F1F77BCF86CD799439011", "507f1f77bcf86cd79943901", "507f1f77bcf86cd7994390111", "507f1f77bcf86cd79943901g", "", " 507f1f77bcf86cd799439011")},
	{"uri", "", stringsOf("http://a.io", "http://a.io/", "https://a.io:8080/x?y=z#f", "//a.io/x", "/x", "x", "x/y", "", "a:b", "mailto:a@b.io", "urn:isbn:1", "http://", "http:///x", "http://[::1]/", "http://[::1", "http://a b/",
		"http://a.io/a b", "http://a.io/%zz", "http://a.io/%41", "http://a.io:x/", "http://a.io:/", "1http://a", "ht tp://a", ":a", "?a", "#a", "/x#y", "http://user:pw@a.io", "http://é.io/é", "\x7f", "http://a.io/\n", "*", "http://a.io:99999", "http://a%41.io", "http://[fe80::1%25en0]/", "http://[::1]a", "HTTP://A", "a+b-c.d:x")},
	{"email", "", stringsOf("a@b.io", "a@b", "a", "@b", "a@", "A <a@b.io>", "<a@b.io>", "\"a b\"@b.io", "a b@b.io", "a.b@c.io", ".a@b.io", "a.@b.io", "a..b@c.io", "a@b..io", "a@-b.io", "a@[1.2.3.4]", "a@[x]", "é@b.io", "a@é.io", "a+c@b.io", "a@b.io ", " a@b.io", "a@b.io,c@d.io", "",
		"A B <a@b.io>", "\"A\" <a@b.io>", "A <a@b.io", "a@b.io (c)", "(c) a@b.io", "=?utf-8?q?a?= <a@b.io>", "a!#$%&'*+/=?^_`{|}~-@b.io", "a\\b@c.io", "a:b@c.io", "a@b@c", "a\n@b.io", "a@b.io\n", "group: a@b.io;", "a@b_c.io", "A. B <a@b.io>")},
	{"hostname", "", stringsOf("a", "a.io", "a.b.c.io", "A.IO", "-a", "a-", "a-b", "a_b", "a..b", ".a", "a.", "", "1", "1.2", "1.2.3.4", "1.2.3.256", "a.1", "a.1a", "a b", "é.io", "日本.jp", "xn--a.io", "xn--wgv71a.jp", "*.a.io", "a*", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 63)+".io",
		strings.Repeat("a.", 126)+"a", strings.Repeat("a.", 127)+"a", "a/b", "a:b", "::1", "localhost", "a.io.", "a--b.io", "ab--c", "0x1", "a.-b", "a\n", "a\u00a0")},
	{"ipv4", "", stringsOf("1.2.3.4", "0.0.0.0", "255.255.255.255", "256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.04", "::1", "::ffff:1.2.3.4", "1.2.3.4/8", " 1.2.3.4", "1.2.3.4 ", "", "a", "1.2.3.-4", "1.2.3.4.", "1..3.4", "0x1.2.3.4", "000.0.0.0", "1.2.3.4%eth0")},
	{"ipv6", "", stringsOf("::1", "::", "fe80::1", "fe80::1%eth0", "::ffff:1.2.3.4", "1.2.3.4", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7::", "1::8::9", "::1.2.3.4", "::1.2.3.256", "12345::", "::g", "[::1]", "::1/64", "", "FE80::A", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7:1.2.3.4", ":1", "1:", "::01.2.3.4", "0001::", "00001::")},
	{"cidr", "", stringsOf("10.0.0.0/8", "10.1.2.3/8", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/08", "10.0.0.0/", "/8", "::/0", "fe80::/10", "::/129", "::ffff:1.2.3.4/96", "::ffff:1.2.3.4/128", "fe80::1%eth0/64", "01.0.0.0/8", "10.0.0/8", "", "10.0.0.0/8/8", "10.0.0.0/+8", "10.0.0.0/8 ", "10.0.0.0/0", "10.0.0.0/00", "10.0.0.0/a")},
	{"mac", "", stringsOf("01:23:45:67:89:ab", "01-23-45-67-89-AB", "0123.4567.89ab", "01:23:45:67:89:ab:cd:ef", "0123.4567.89ab.cdef", "01:23:45:67:89", "01:23-45:67:89:ab", "0123456789ab", "1:2:3:4:5:6", "01:23:45:67:89:ag", "", "00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01", "01:23:45:67:89:ab:", "0123:4567:89ab", "01.23.45.67.89.ab", "00-00-00-00-fe-80-00-00-00-00-00-00-02-00-5e-10-00-00-00-01")},
	{"uuid", "", uuids}, {"uuid3", "", uuids}, {"uuid4", "", uuids}, {"uuid5", "", uuids},
	{"isbn", "", isbns}, {"isbn10", "", isbns}, {"isbn13", "", isbns},
	{"creditcard", "", stringsOf("4111111111111111", "4111 1111 1111 1111", "4111-1111-1111-1111", "4111111111111112", "5555555555554444", "378282246310005", "6011111111111117", "30569309025904", "3530111333300000", "4222222222222", "a4111111111111111", "4111111111111111a", "411111111111111", "", "0", "2131111111111111", "180011111111111", "5019717010103742", "4111\n1111 1111 1111", "٤١١١١١١١١١١١١١١١")},
	{"ssn", "", stringsOf("111-11-1111", "111 11 1111", "111111111", "111-111111", "11111-1111", "1111-11-1111", "111-11-111", "111-11-11111", "", "aaa-aa-aaaa", "111- 11-1111", "x111-11-1111", "000-00-0000", "666-11-1111", "١١١-١١-١١١١")},
	{"hexcolor", "", stringsOf("#FFFFFF", "#fff", "fff", "FFFFFF", "#ffff", "#ff", "#ggg", "", "#FFFFFFF", " #fff", "##fff", "#fFf", "#fff\n")},
	{"rgbcolor", "", stringsOf("rgb(255,255,255)", "rgb(0, 0, 0)", "rgb( 1 , 2 , 3 )", "rgb(256,0,0)", "rgb(1,2)", "rgb(1,2,3,4)", "rgba(1,2,3,0.5)", "RGB(1,2,3)", "rgb(01,2,3)", "rgb(-1,2,3)", "rgb (1,2,3)", "rgb(1%,2%,3%)", "", "rgb(1.5,2,3)", "rgb(255,255,2559", "rgb(001,2,3)", "rgb(1,2,3) ", " rgb(1,2,3)", "rgb(\t1,2,3)")},
	{"byte", "", stringsOf("YWI=", "YWI", "YQ==", "YQ=", "YQ", "YWJj", "Y W I =", "YWI=\n", "YW\nI=", "-_-_", "+/+/", "", "=", "====", "YWI==", "YWJ", "é", "YW=I", "YWJjZA==", "YWJjZB==", " YWI=", "YWI= ", "\n", "YWI=YWI=")},
	{"password", "", stringsOf("", "a", "é", "\n")},
	{"date", "", stringsOf("2006-01-02", "2020-02-29", "2021-02-29", "2006-1-2", "2006-13-01", "2006-00-01", "2006-01-32", "2006-01-00", "06-01-02", "2006/01/02", "2006-01-02T00:00:00Z", "2006-01-02 ", " 2006-01-02", "", "0000-01-01", "9999-12-31", "10000-01-01", "2006-04-31", "20060102", "2006-01-02Z", "-2006-01-02", "1900-02-29", "2000-02-29")},
	{"datetime", "", datetimes}, {"date-time", "", datetimes}, {"dateTime", "", datetimes},
	{"duration", "", stringsOf("1h", "1h30m", "1.5h", "-1h", "+1h", "22 ns", "22ns", "1 day", "1 days", "2d", "1 d", "1w", "1 week", "2 weeks", "1 hour", "3 hours", "1 min", "2 mins", "1 minute", "5 minutes", "1 sec", "10 secs", "1 second", "2 seconds", "1 milli", "1 millis", "1 ms", "1 millisecond", "1 milliseconds", "1 micro", "1 micros", "1 us", "1 µs", "1µs", "1μs",
		"1 microsecond", "1 nano", "1 nanos", "1 nanosecond", "1 nanoseconds", "0", "1", "", "h", "1x", "1 x", "1 h 2 m", "1h 2m", "1 hour 2 minutes", "1hour", "1 Hour", "1H", "1.5 hours", "1.5 days", "-1 day", "- 1 day", "1  day", " 1 day", "1 day ", "1day", "Inf", "9223372036854775807ns", "9223372036854775808ns", "300000h", "3000000h", "106752 days", "1000000 days", ".5s", "1.s", ".s", "1e3s", "1y", "1 month", "1 hrs", "1 hr", "1 hrs 1 min", "1\tday", "1 day\n")},
	{"k8s-short-name", "", names}, {"k8sshortname", "", names}, {"k8s-long-name", "", names}, {"k8s-shortname", "", names},
	{"int32", "integer", numbers}, {"int64", "integer", numbers}, {"float", "number", numbers}, {"double", "number", numbers}, {"", "integer", numbers}, {"", "number", numbers},
	{"int32", "number", numbers}, {"int64", "number", numbers}, {"float", "integer", numbers}, {"double", "integer", numbers}, {"int32", "string", stringsOf("a", "1")}, {"uuid", "integer", numbers},
	{"", "", stringsOf("", "a")}, {"unknown", "", stringsOf("", "a")}, {"UUID", "", uuids}, {"u-u-i-d", "", uuids}, {"ip-v4", "", stringsOf("1.2.3.4", "a")}, {"ipv-6", "", stringsOf("::1", "a")}, {"ip", "", stringsOf("1.2.3.4", "a")}, {"date_time", "", datetimes},
	{"binary", "", stringsOf("a")}, {"int-or-string", "", stringsOf("a")}, {"ULID", "", stringsOf("a")}, {"regex", "", stringsOf("(")}, {"uri-reference", "", stringsOf("a b")}, {"quantity", "", stringsOf("a")}, {"time", "", stringsOf("a")}, {"HostName", "", stringsOf("-")},
	{"email", "object", []any{tree{}, tree{"a": 1}, "a"}}, {"date", "array", []any{[]any{}, []any{"a"}}}, {"date", "boolean", []any{true, "a"}},
}

var uuids = stringsOf("a8098c1a-f86e-11da-bd1a-00112444be1e", "A8098C1A-F86E-11DA-BD1A-00112444BE1E", "a8098c1af86e11dabd1a00112444be1e", "6fa459ea-ee8a-3ca4-894e-db77e160355e", "16fd2706-8baf-433b-82eb-8c7fada847da", "886313e1-3b8a-5372-9b90-0c9aee199e5d",
	"16fd2706-8baf-433b-c2eb-8c7fada847da", "16fd27068baf433b82eb8c7fada847da", "16fd2706-8baf433b82eb-8c7fada847da", "16fd2706--8baf-433b-82eb-8c7fada847da", "{16fd2706-8baf-433b-82eb-8c7fada847da}", "urn:uuid:16fd2706-8baf-433b-82eb-8c7fada847da", "16fd2706-8baf-433b-82eb-8c7fada847d", "16fd2706-8baf-433b-82eb-8c7fada847dag",
	"16fd2706-8baf-433b-82eb-8c7fada847dg", "", "00000000-0000-0000-0000-000000000000", " 16fd2706-8baf-433b-82eb-8c7fada847da", "16fd2706-8baf-433b-82eb-8c7fada847da\n", "6fa459eaee8a3ca4894edb77e160355e", "886313e13b8a53729b900c9aee199e5d", "6fa459ea-ee8a-3ca4-094e-db77e160355e", "886313e1-3b8a-5372-0b90-0c9aee199e5d")

var isbns = stringsOf("0321751043", "978-0321751041", "9780321751041", "0-321-75104-3", "0 321 75104 3", "032175104X", "080442957X", "080442957x", "0321751044", "9780321751042", "978-0-321-75104-1", "979-10-90636-07-1", "", "1234567890", "0000000000", "0000000000000", "032175104", "03217510433", "97803217510411", "X321751043", "977-0321751041", "isbn 0321751043", "0321751043\n", " 0321751043")

var datetimes = stringsOf("2014-12-15T19:30:20.000Z", "2014-12-15T19:30:20Z", "2014-12-15T19:30:20+02:00", "2014-12-15T19:30:20-0200", "2014-12-15T19:30:20.123456789Z", "2014-12-15T19:30:20.1234567890Z", "2014-12-15T19:30:20.Z", "2014-12-15T19:30:20", "2014-12-15 19:30:20Z", "2014-12-15t19:30:20z", "2014-12-15T19:30Z", "2014-12-15T24:00:00Z",
	"2014-12-15T23:59:60Z", "2014-12-15T23:60:00Z", "2014-12-15", "2014-02-30T00:00:00Z", "2014-12-15T19:30:20+24:00", "2014-12-15T19:30:20+23:59", "2014-12-15T19:30:20+2:00", "2014-12-15T19:30:20,5Z", "2014-12-15T1:30:20Z", "", "now", "0000-01-01T00:00:00Z", "2014-12-15T19:30:20Z ", " 2014-12-15T19:30:20Z", "2014-12-15T19:30:20-00:00", "2014-13-15T19:30:20Z",
	"2014-12-15T19:30:20.5+01:00", "2014-12-15T19:30:20.5", "2014-12-15T19:30:20.123", "2014-12-15T19:30", "10000-01-01T00:00:00Z", "2014-12-15T19:30:20+25:00", "2014-12-15T19:30:20+02:60", "20141215T193020Z", "2014-12-15T19:30:20 Z", "2014-12-15T19:30:20UTC")

var names = stringsOf("a", "a-b", "a.b", "A", "-a", "a-", "a..b", ".a", "a.", "", "1", "a_b", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 253), strings.Repeat("a", 254), strings.Repeat("a.", 126)+"a", strings.Repeat("a.", 127)+"a", "a b", "é", "a.b-.c", "a\n", strings.Repeat("a", 64)+".b")

var numbers = []any{0, 1, -1, 1.5, -0.5, 2147483647, 2147483648, -2147483648, -2147483649, int64(9223372036854775807), number("9223372036854775808"), number("-9223372036854775808"), number("-9223372036854775809"), number("1e3"), number("1.0"), number("1e18"), number("1e19"),
	number("1e38"), number("3.4e38"), number("3.5e38"), number("-3.5e38"), number("1e-50"), number("1e308"), number("1e-320"), number("0.1"), number("16777217"), number("-0"), number("-0.0"), number("2147483647.0"), number("2147483648.0"), "1", "a", true, nil, []any{}, tree{}}

func formatCases(g *generator) []question {
	var cases []question
	for _, table := range formatTables {
		values := table.values
		if g != nil {
			values = g.nearly(table.values)
		}
		asked := question{Op: "format", Format: table.format, Type: table.valueType}
		for _, value := range values {
			asked.Values = append(asked.Values, raw(value))
		}
		cases = append(cases, asked)
	}
	return cases
}

// nearly are values that differ little from some values.
func (g *generator) nearly(values []any) []any {
	var other []any
	for range 12 {
		text, isText := pick(g, values...).(string)
		if !isText {
			continue
		}
		runes := []rune(text)
		at := g.IntN(len(runes) + 1)
		switch g.IntN(4) {
		case 0:
			if at < len(runes) {
				runes = append(runes[:at:at], runes[at+1:]...)
			}
		case 1:
			if at < len(runes) {
				runes[at] = pick(g, '0', '9', 'a', 'f', 'Z', '-', '.', ':', ' ', '%', '/', '@')
			}
		case 2:
			runes = append(runes[:at:at], append([]rune{pick(g, '0', '1', 'a', '-', '.', ':', ' ', '_', 'é', '+')}, runes[at:]...)...)
		default:
			second, _ := pick(g, values...).(string)
			runes = append(runes[:at:at], []rune(second)...)
		}
		other = append(other, string(runes))
	}
	return other
}
