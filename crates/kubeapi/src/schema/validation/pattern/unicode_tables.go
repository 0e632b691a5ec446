//go:build ignore

// Writes the tables of Go's package unicode that its regular expressions use, in the form that unicode.rs reads:
//
//	go run unicode_tables.go > unicode_tables.txt
package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

func main() {
	fmt.Printf("# Unicode %s as in Go's package unicode. Written by unicode_tables.go.\n", unicode.Version)
	fmt.Println("# category NAME RANGES, script NAME RANGES: /2 is every second code point")
	for _, name := range slices.Sorted(maps.Keys(unicode.Categories)) {
		if len(name) == 2 && name != "LC" && name != "Cn" {
			printTable("category", name, unicode.Categories[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unicode.Scripts)) {
		// Not every script can be named in a regular expression.
		if _, err := regexp.Compile(`\p{` + name + `}`); err == nil {
			printTable("script", name, unicode.Scripts[name])
		}
	}
	fmt.Println("# alias NAME CATEGORY")
	for _, name := range slices.Sorted(maps.Keys(unicode.CategoryAliases)) {
		canonical := strings.ReplaceAll(name, "_", "")
		canonical = strings.ToUpper(canonical[:1]) + strings.ToLower(canonical[1:])
		category := unicode.CategoryAliases[name]
		fmt.Println("alias", canonical, category[:1]+strings.ToLower(category[1:]))
	}
	printFolds()
}

func printTable(keyword, name string, table *unicode.RangeTable) {
	var ranges [][2]rune
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if last := len(ranges) - 1; !unicode.Is(table, r) {
			continue
		} else if last >= 0 && ranges[last][1] == r-1 {
			ranges[last][1] = r
		} else {
			ranges = append(ranges, [2]rune{r, r})
		}
	}
	fmt.Print(keyword, " ", name)
	for i := 0; i < len(ranges); i++ {
		first, last := ranges[i][0], ranges[i][1]
		run := i
		for first == last && run+1 < len(ranges) && ranges[run+1] == [2]rune{ranges[run][0] + 2, ranges[run][0] + 2} {
			run++
		}
		switch {
		case run > i+1:
			fmt.Printf(" %X-%X/2", first, ranges[run][0])
			i = run
		case first == last:
			fmt.Printf(" %X", first)
		default:
			fmt.Printf(" %X-%X", first, last)
		}
	}
	fmt.Println()
}

// printFolds writes the sets of code points that are equal in a case-insensitive expression.
func printFolds() {
	type run struct{ first, last, step, distance rune }
	var runs []run
	fmt.Println("# orbit CODEPOINTS: letters that differ in case only")
	for r := rune(0); r <= unicode.MaxRune; r++ {
		orbit := []rune{r}
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			orbit = append(orbit, other)
		}
		if slices.Min(orbit) != r || len(orbit) == 1 {
			continue
		}
		if len(orbit) > 2 {
			fmt.Print("orbit")
			for _, other := range orbit {
				fmt.Printf(" %X", other)
			}
			fmt.Println()
			continue
		}
		distance := orbit[1] - r
		if n := len(runs) - 1; n >= 0 && runs[n].distance == distance {
			if step := r - runs[n].last; step <= 2 && (runs[n].first == runs[n].last || runs[n].step == step) {
				runs[n].last, runs[n].step = r, step
				continue
			}
		}
		runs = append(runs, run{r, r, 1, distance})
	}
	fmt.Println("# pairs RANGES: +N is the distance to the other letter")
	fmt.Print("pairs")
	for _, run := range runs {
		fmt.Printf(" %X", run.first)
		if run.last > run.first {
			fmt.Printf("-%X", run.last)
		}
		if run.step == 2 {
			fmt.Print("/2")
		}
		fmt.Printf("+%X", run.distance)
	}
	fmt.Println()
}
