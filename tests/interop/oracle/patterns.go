package main

import (
	"strings"
)

// subjects are what patterns are matched with, unless a case says otherwise.
var subjects = []string{"", "a", "b", "ab", "abc", "A", "AB", "a1", "12", "123", "a b", "a\nb", "a\n", "\n", " ", "_", "-", "é", "aé", "É", "ß", "ſ", "K",
	"日本", "π", "Ω", "\t", "\v", "\u00a0", "\u2028", "a.b", "a-b", "a]b", "{", "a{,2}", "&", "[a]b]", "aaaa", "aXb", "\\", "/", "\u0301", "١", "😀"}

// patternTables are patterns that Go and other engines may see differently: what only Go accepts, what only others accept,
// what both accept with another meaning.
var patternTables = []string{
	``, `a`, `^a$`, `^(a|b)*$`, `a.b`, `(?s)a.b`, `(?m)^b$`, `(?m)a$`, `a$`, `a\z`, `\Aa`, `a\Z`, `^`, `$`, `^$`, `\b`, `\B`, `\bb`, `a\b`, `\bé`, `\Bé`,
	`(?i)ab`, `(?i)k`, `(?i)s`, `(?i)ß`, `(?i)é`, `(?i:a)b`, `(?i)a(?-i)b`, `(?U)a+`, `(?U)a+?`, `(?ims)a`, `(?-i)a`, `(?i-s)a`, `(?x)a b`, `(?i`, `(?z)a`, `(?-)a`,
	`(?ii)a`, `(?i-i)a`, `(?u)a`, `(?-u)a`, `(?R)a`, `(?i--s)a`, `(?:a)`, `(?:a`, `(a`, `a)`, `()`, `(|a)`, `(a|)`, `|`, `||`, `a||b`, `(|)*`,
	`\d`, `\D`, `\w`, `\W`, `\s`, `\S`, `^\d$`, `^\w$`, `^\W$`, `^\s$`, `^\S+$`, `[\d]`, `[^\d]`, `[\w-]`, `[\d-z]`, `[a-\d]`, `[\s\S]`, `^[\S]$`, `[^\s]`, `[^\S\n]`, `^.$`,
	`[[:alpha:]]`, `^[[:alpha:]]$`, `[[:^alpha:]]`, `[[:digit:]]`, `[[:word:]]`, `[[:space:]]`, `[[:punct:]]`, `[[:xdigit:]]`, `[[:cntrl:]]`, `[[:ascii:]]`, `[[:blank:]]`,
	`[[:graph:]]`, `[[:print:]]`, `[[:upper:]]`, `[[:lower:]]`, `[[:alnum:]]`, `[[:foo:]]`, `[[:alpha:`, `[[:alpha]]`, `[:alpha:]`, `[[=a=]]`, `[[.a.]]`, `(?i)[[:upper:]]`,
	`\pL`, `\p{L}`, `\PL`, `\p{^L}`, `\P{^L}`, `\p{Lu}`, `\p{lu}`, `\pLu`, `\p{Greek}`, `\p{greek}`, `\p{Greek`, `\p{}`, `\p`, `\p{Foo}`, `\pX`, `\p{Any}`, `\p{Letter}`, `\p{Script=Greek}`,
	`\p{sc=Greek}`, `\p{gc=Lu}`, `\p{Alphabetic}`, `\p{Han}`, `\p{Nd}`, `\p{N}`, `[\p{L}\d]`, `[\p{^L}]`, `[^\pL]`, `(?i)\p{Lu}`, `\p{ASCII}`, `\p{Assigned}`, `\p{Cn}`, `\p{LC}`, `\p{Cased_Letter}`, `\p{Uppercase_Letter}`, `\p{Cs}`,
	`\x41`, `\x4`, `\x`, `\x{41}`, `\x{}`, `\x{41`, `\x{110000}`, `\x{10FFFF}`, `\x{D800}`, `\u0041`, `\u{41}`, `\U00000041`, `\07`, `\0`, `\012`, `\1`, `\12`, `(a)\1`, `\8`, `\9`, `\101`, `\a`, `\f`, `\t`, `\n`, `\r`, `\v`, `\e`,
	`\cA`, `\C`, `\G`, `\K`, `\R`, `\X`, `\h`, `\H`, `\N`, `\V`, `\Q.a\E`, `\Qa`, `\Q\E`, `\E`, `a\Q*\E*`, `\z`, `\y`, `\<a`, `a\>`, `\b{start}`, `\b{start-half}`, `\_`, `\-`, `\ `, `\/`, `\"`, `\'`, `\#`, `\&`, `\~`, `\%`, `\é`, `\日`, `\`, `a\`,
	"\\\n", `\.`, `\*`, `\{`, `\}`, `\]`, `\^`, `\$`, `\|`, `\@`, `\:`, `\;`, `\=`, `\!`, `\,`, "\\`",
	`a*`, `a+`, `a?`, `a??`, `a*?`, `a+?`, `a**`, `a*+`, `a++`, `a?+`, `a???`, `*`, `+`, `?`, `*a`, `(*)`, `a|*`, `^*`, `$*`, `^+`, `\b*`, `\b+`, `(?i)*`, `(?:)*`, `()*`, `(a*)*`, `(a*)+`, `(a+)*`, `((a*)*)*`, `(a|b|)+`,
	`a{2}`, `a{2,}`, `a{2,3}`, `a{0}`, `a{0,0}`, `a{,2}`, `a{2`, `a{`, `{`, `}`, `{2}`, `a{2,1}`, `a{1000}`, `a{1001}`, `a{1,1001}`, `a{1001,}`, `a{99999999999}`, `a{2}{3}`, `a{2}*`, `a{2}?`, `a{2}??`, `(a{500}){2}`, `(a{500}){3}`, `((a{10}){10}){10}`,
	`((a{10}){10}){11}`, `(a{0,1000}){0,1000}`, `a{ 2}`, `a{2, 3}`, `a{-1}`, `a{01}`, `x{2}{2}`, `(?:x{2}){2}`, `a{}`, `a{,}`, `^{2}`, `({2})`, `a|{2}`, `a{2}{`,
	`[a]`, `[^a]`, `[a-c]`, `[c-a]`, `[a-]`, `[-a]`, `[a-c-e]`, `[]`, `[]a]`, `[^]a]`, `[^]`, `[]-a]`, `[a`, `[`, `[^`, `[a-`, `[\`, `[\]]`, `[\]`, `]`, `a]`, `[[]`, `[[a]b]`, `[a[b]]`, `[a&&b]`, `[a-c&&b]`, `[&&]`, `[a--b]`, `[a-c--b]`, `[a~~b]`, `[\b]`, `[\B]`,
	`[\Q]\E]`, `[\x41-\x43]`, `[\pL-z]`, `[a-\pL]`, `[é]`, `[α-ω]`, `(?i)[α-ω]`, `(?i)[k]`, `(?i)[^k]`, `[\n]`, `[^\n]`, `[.]`, `[$^]`, `[^^]`, `[a\-z]`, `[\-a]`, `[+--]`, `[!-~]`, `[ -~]`, `[\]-a]`, `[\\-\]]`, `[^\x00-\x{10FFFF}]`, `[\x00-\x{10FFFF}]`,
	`[#-&]`, `[a#b]`, `[[:alpha:][:digit:]]`, `[^[:alpha:]]`, `[a-[:digit:]]`, `[[:digit:]-z]`, `[\d\D]`, `[^\d\D]`, `[\z]`, `[\A]`, `[\8]`, `[\1]`, `[\01]`, `[\a]`, `[\e]`, `[\_]`, `[\é]`,
	`(?P<n>a)`, `(?<n>a)`, `(?P<n>a)(?P<n>b)`, `(?P<n>a)(?<n>b)`, `(?P<1>a)`, `(?P<é>a)`, `(?P<n-m>a)`, `(?P<>a)`, `(?P<n`, `(?P<n>`, `(?<n`, `(?P=n)`, `(?P>n)`, `(?Pn)`, `(?'n'a)`, `(?=a)`, `(?!a)`, `(?<=a)b`, `(?<!a)b`, `(?>a)`, `(?#c)a`, `(?|a)`, `(?`, `(?)`, `(?P`, `(?<`, `(??)`, `(?+1)`, `(?1)`, `(?(1)a|b)`, `(?&n)`, `(*ACCEPT)`,
	`(?P<_n1>a)`, `(?P<n.m>a)`, `(?P<n[0]>a)`, `(?<n.m>a)`,
	`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`, `^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`, `^(([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)|0$`, `^\d+%?$`, `^(\d+|\*)$`, `^https?://[^\s]+$`,
	`^((100|[0-9]{1,2})%|[0-9]+)$`, `^[^/]+(/[^/]+)*$`, `^0[0-7]{3}$|^[0-7]{1,3}$`, `^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$`, `^.{1,3}$`, `^[\x20-\x7E]*$`, `^\pL[\pL\d_]*$`,
	"a\nb", "^a\nb$", "\u00a0", "é+", "日{1}", "(?i)É", "[日本]", "\U0001F600", "^.\u0301$", "#a", "a #b", "&&", "<&>", "\x00", "[\x00]",
	`(a|ab)(c|bcd)(d*)`, `(a+)(b+)`, `(.*)(.*)`, `(.*)*x`, `(a|aa)+$`, `(?:a?){20}a{20}`, `(x+x+)+y`,
}

func patternCases(g *generator) []question {
	var cases []question
	add := func(pattern string, strings []string) {
		cases = append(cases, question{Op: "pattern", Pattern: &pattern, Strings: strings})
	}
	if g == nil {
		for _, pattern := range patternTables {
			add(pattern, subjects)
		}
		// Limits of nesting and of size.
		for _, depth := range []int{999, 1000, 1001} {
			add(strings.Repeat("(", depth)+strings.Repeat(")", depth), nil)
		}
		add(strings.Repeat("a|", 3000), nil)
		add(strings.Repeat(`\pL`, 300), nil)
		add(strings.Repeat("(?:a{10}", 4)+strings.Repeat(")", 4), nil)
		return cases
	}
	add(g.pattern(3), g.subjects())
	return cases
}

func (g *generator) subjects() []string {
	var list []string
	for range 8 {
		text := pick(g, subjects...)
		for g.chance(3) {
			text += pick(g, subjects...)
		}
		list = append(list, text)
	}
	return list
}

// pattern is a random regular expression, not always a correct one.
func (g *generator) pattern(depth int) string {
	var out strings.Builder
	for range 1 + g.IntN(3) {
		out.WriteString(g.patternAtom(depth))
		if g.chance(3) {
			out.WriteString(pick(g, "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{2,}", "{,2}", "{0}", "{2,1}", "**", "{", "{1001}"))
		}
	}
	if g.chance(5) {
		out.WriteString("|" + g.pattern(depth-1))
	}
	return out.String()
}

func (g *generator) patternAtom(depth int) string {
	if depth > 0 && g.chance(3) {
		return pick(g, "(", "(", "(?:", "(?i:", "(?P<n>", "(?s:", "(?m:", "(?U:", "(?<m>", "(?=", "(?-i:") + g.pattern(depth-1) + ")"
	}
	switch g.IntN(6) {
	case 0:
		return g.patternClass()
	case 1:
		return `\` + pick(g, "d", "D", "w", "W", "s", "S", "b", "B", "pL", "p{Greek}", "PN", "p{^Lu}", "x41", "x{e9}", "n", "t", "v", ".", "-", "A", "z", "Z", "101", "1", "Q*", "_", "é", "/", "<", "e", "u0041")
	case 2:
		return pick(g, "^", "$", ".", "(?i)", "(?s)", "(?m)", "]", "}", "{", "-", "&&", "#", " ", "/")
	case 3:
		return pick(g, "é", "日", "ß", "K", "π", "\n")
	}
	return pick(g, "a", "b", "ab", "A", "1", "12", "_", "x")
}

func (g *generator) patternClass() string {
	var out strings.Builder
	out.WriteString(pick(g, "[", "[", "[^"))
	for range 1 + g.IntN(3) {
		out.WriteString(pick(g, "a", "b-d", "A-Z", "0-9", `\d`, `\w`, `\S`, `\pL`, "[:alpha:]", "[:^digit:]", "é", "α-ω", "-", `\-`, `\]`, "]", "[", "&&", "--", "~~", "^", "z-a", ".", `\n`, `\b`, `\x41`, "[:foo:]", " ", "#"))
	}
	out.WriteString("]")
	return out.String()
}
