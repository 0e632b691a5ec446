package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// parsed are hand-written cases: one JSON object a line.
func parsed(op, lines string) ([]question, error) {
	var cases []question
	for _, line := range strings.Split(lines, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "//") {
			continue
		}
		asked := question{}
		if err := json.Unmarshal([]byte(line), &asked); err != nil {
			return nil, fmt.Errorf("%w in %s", err, line)
		}
		asked.Op = op
		cases = append(cases, asked)
	}
	return cases, nil
}

func objectTables() ([]question, error)     { return nil, nil }
func structuralTables() ([]question, error) { return nil, nil }
