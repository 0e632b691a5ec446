package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var pathElement = regexp.MustCompile(`^([^\[]+)((?:\[\d+\])*)$`)

// edit applies one edit of definitionTables.
func edit(definition tree, text string) error {
	switch text {
	case "+v2", "+v2same":
		spec := definition["spec"].(tree)
		second := parse(secondVersion).(tree)
		versions := spec["versions"].([]any)
		if text == "+v2same" {
			second["schema"] = copied(versions[0].(tree)["schema"])
		}
		spec["versions"] = append(versions, second)
		return nil
	}
	path, value, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("edit %q", text)
	}
	const root = "spec.versions[0].schema.openAPIV3Schema"
	names := strings.Split(path, ".")
	switch names[0] {
	case "S":
		names = append(strings.Split(root, "."), names[1:]...)
	case "P":
		names = append(strings.Split(root+".properties", "."), names[1:]...)
	}
	var at any = definition
	for index, name := range names {
		parts := pathElement.FindStringSubmatch(name)
		if parts == nil {
			return fmt.Errorf("path %q", path)
		}
		here, isTree := at.(tree)
		if !isTree {
			return fmt.Errorf("path %q of %v", path, definition)
		}
		if index == len(names)-1 {
			if value == "-" {
				delete(here, name)
			} else {
				here[name] = parse(value)
			}
			return nil
		}
		at = here[parts[1]]
		for _, number := range strings.FieldsFunc(parts[2], func(r rune) bool { return r == '[' || r == ']' }) {
			position, err := strconv.Atoi(number)
			if err != nil {
				return err
			}
			at = at.([]any)[position]
		}
		if at == nil {
			at = tree{}
			here[parts[1]] = at
		}
	}
	return nil
}

// parse is JSON with numbers as they are written.
func parse(text string) any {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		panic(fmt.Sprintf("%v in %s", err, text))
	}
	return value
}

func editedDefinition(line string) (question, error) {
	line = strings.ReplaceAll(line, "$LONG256", strings.Repeat("é", 128))
	line = strings.ReplaceAll(line, "$LONG257", strings.Repeat("é", 128)+"a")
	definition := parse(baseDefinition).(tree)
	var old tree
	at := definition
	for _, text := range strings.Split(line, "; ") {
		switch text {
		case "old":
			old = copied(definition).(tree)
			old["status"] = parse(established)
			at = old
		case "new":
			at = definition
		default:
			if err := edit(at, text); err != nil {
				return question{}, fmt.Errorf("%w in %s", err, line)
			}
		}
	}
	asked := question{Op: "definition", Definition: raw(definition)}
	if old != nil {
		asked.Old = raw(old)
	}
	return asked, nil
}

func definitionCases() ([]question, error) {
	var cases []question
	for index, line := range definitionTables {
		asked, err := editedDefinition(line)
		if err != nil {
			return nil, err
		}
		// What would be stored is said of some.
		asked.Show = index%7 == 0
		cases = append(cases, asked)
	}
	for _, stored := range storedDefinitions {
		cases = append(cases, question{Op: "definition", Stored: true, Definition: raw(parse(stored))})
	}
	return cases, nil
}

// definitionCase combines two to four of the hand-written edits.
func (g *generator) definitionCase() question {
	for {
		var edits []string
		hasOld := false
		for range 2 + g.IntN(3) {
			line := pick(g, definitionTables...)
			if strings.Contains(line, "old") {
				if hasOld {
					continue
				}
				hasOld = true
				edits = append(edits, line)
			} else {
				edits = append([]string{line}, edits...)
			}
		}
		if g.chance(3) {
			schema := g.rootSchema()
			for range g.IntN(3) {
				g.damageSchema(schema)
			}
			edits = append([]string{"S=" + string(raw(schema))}, edits...)
		}
		asked, err := g.tryEdits(strings.Join(edits, "; "))
		if err != nil || len(asked.Definition) > 1200 {
			continue
		}
		if len(asked.Old) > 0 {
			if _, _, err := decodedDefinition(asked.Old); err != nil {
				continue
			}
		}
		return asked
	}
}

// tryEdits applies edits that may not fit together.
func (g *generator) tryEdits(line string) (asked question, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("%v", recovered)
		}
	}()
	return editedDefinition(line)
}
