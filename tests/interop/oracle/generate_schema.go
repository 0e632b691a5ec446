package main

func (g *generator) rootSchema() tree {
	root := tree{"type": "object", "properties": tree{}}
	properties := root["properties"].(tree)
	for range 1 + g.IntN(3) {
		properties[g.fieldName()] = g.schema()
	}
	if g.chance(8) {
		root["required"] = []any{keyOf(g, properties)}
	}
	if g.chance(12) {
		properties["metadata"] = pick(g,
			tree{"type": "object"},
			tree{"type": "object", "properties": tree{"name": tree{"type": "string", "maxLength": 3}}},
			tree{"type": "object", "properties": tree{"name": tree{"type": "string", "pattern": "^b"}}})
	}
	if g.chance(12) {
		properties["kind"] = tree{"type": "string"}
		properties["apiVersion"] = tree{"type": "string", "minLength": 1}
	}
	if g.chance(20) {
		root["x-kubernetes-preserve-unknown-fields"] = true
	}
	if g.chance(10) {
		g.combine(root)
	}
	return root
}

func (g *generator) fieldName() string {
	return pick(g, "a", "b", "c", "d", "spec", "item", "list", "x-y", "a.b", "ä")
}

// schema is a random schema that is structural in most cases.
func (g *generator) schema() tree {
	g.depth++
	defer func() { g.depth-- }()
	var s tree
	kind := g.IntN(20)
	if g.depth > 3 {
		kind = 10 + g.IntN(10)
	}
	switch {
	case kind < 5:
		s = g.object()
	case kind < 6:
		s = g.mapOf()
	case kind < 9:
		s = g.array()
	case kind < 10:
		s = g.embedded()
	case kind < 14:
		s = g.text()
	case kind < 16:
		s = g.number("integer")
	case kind < 17:
		s = g.number("number")
	case kind < 18:
		s = tree{"type": "boolean"}
	case kind < 19:
		s = tree{"x-kubernetes-int-or-string": true}
		if g.chance(2) {
			s["anyOf"] = []any{tree{"type": "integer"}, tree{"type": "string"}}
		}
		if g.chance(4) {
			s["pattern"] = "^[0-9]+%?$"
		}
		if g.chance(4) {
			s["maximum"] = 100
		}
	default:
		s = tree{"x-kubernetes-preserve-unknown-fields": true}
		if g.chance(2) {
			s["type"] = "object"
		}
	}
	if g.chance(6) {
		s["nullable"] = true
	}
	if g.chance(7) {
		g.combine(s)
	}
	if g.chance(14) {
		s["enum"] = []any{g.value(s), g.value(s)}
	}
	if g.chance(5) {
		s["default"] = g.value(s)
		if g.chance(10) && s["nullable"] == true {
			s["default"] = nil
		}
	}
	return s
}

func (g *generator) object() tree {
	properties := tree{}
	for range 1 + g.IntN(3) {
		properties[g.fieldName()] = g.schema()
	}
	s := tree{"type": "object", "properties": properties}
	if g.chance(3) {
		s["required"] = []any{keyOf(g, properties)}
	}
	if g.chance(10) {
		s["x-kubernetes-preserve-unknown-fields"] = true
	}
	if g.chance(12) {
		s["minProperties"] = 1 + g.IntN(2)
	}
	if g.chance(12) {
		s["maxProperties"] = 1 + g.IntN(2)
	}
	if g.chance(12) {
		s["x-kubernetes-map-type"] = pick(g, "atomic", "granular")
	}
	return s
}

func (g *generator) mapOf() tree {
	s := tree{"type": "object"}
	if g.chance(8) {
		s["additionalProperties"] = true
		if g.chance(3) {
			s["properties"] = tree{g.fieldName(): g.schema()}
		}
		return s
	}
	s["additionalProperties"] = g.schema()
	if g.chance(8) {
		s["maxProperties"] = 1
	}
	return s
}

func (g *generator) array() tree {
	s := tree{"type": "array"}
	switch g.IntN(5) {
	case 0:
		s["x-kubernetes-list-type"] = "set"
		item := pick(g, tree{"type": "string"}, tree{"type": "integer"}, tree{"type": "number"}, tree{"type": "boolean"},
			tree{"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": tree{"type": "string"}},
			tree{"type": "array", "x-kubernetes-list-type": "atomic", "items": tree{"type": "integer"}},
			tree{"x-kubernetes-int-or-string": true})
		s["items"] = copied(item)
	case 1, 2:
		s["x-kubernetes-list-type"] = "map"
		item := tree{"type": "object", "properties": tree{
			"name": pick(g, tree{"type": "string"}, tree{"type": "integer"}, tree{"type": "string", "maxLength": 3}),
			"v":    g.schema(),
		}}
		keys := []any{"name"}
		required := []any{"name"}
		if g.chance(2) {
			port := tree{"type": "integer"}
			if g.chance(2) {
				port["default"] = 80
			} else {
				required = append(required, "port")
			}
			item["properties"].(tree)["port"] = port
			keys = append(keys, "port")
		}
		item["required"] = required
		s["x-kubernetes-list-map-keys"] = keys
		s["items"] = item
	case 3:
		s["x-kubernetes-list-type"] = "atomic"
		s["items"] = g.schema()
	default:
		s["items"] = g.schema()
	}
	if g.chance(8) {
		s["minItems"] = 1 + g.IntN(2)
	}
	if g.chance(8) {
		s["maxItems"] = 1 + g.IntN(2)
	}
	return s
}

func (g *generator) embedded() tree {
	s := tree{"type": "object", "x-kubernetes-embedded-resource": true}
	if g.chance(2) {
		s["x-kubernetes-preserve-unknown-fields"] = true
	}
	if s["x-kubernetes-preserve-unknown-fields"] == nil || g.chance(2) {
		s["properties"] = tree{g.fieldName(): g.schema()}
	}
	return s
}

var patterns = []string{"^a", "b$", "^[a-z]+$", "[0-9]{2,3}", "a|b", "^$", `\d`, `^\S+$`, "(?i)AB", "[[:alpha:]]", `\p{L}`}

var stringFormats = []string{
	"bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3", "uuid4", "uuid5", "isbn", "isbn10",
	"isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "password", "date", "duration", "datetime", "date-time",
	"k8s-short-name", "k8s-long-name",
}

func (g *generator) text() tree {
	s := tree{"type": "string"}
	switch g.IntN(9) {
	case 0:
		s["pattern"] = pick(g, patterns...)
	case 1:
		s["format"] = pick(g, stringFormats...)
	case 2:
		s["minLength"] = g.IntN(4)
	case 3:
		s["maxLength"] = g.IntN(4)
	case 4:
		s["enum"] = []any{"a", "b", "ab"}
	case 5:
		s["format"] = pick(g, "unknown", "int32", "date_time")
	}
	return s
}

func (g *generator) number(kind string) tree {
	s := tree{"type": kind}
	switch g.IntN(8) {
	case 0:
		s["minimum"] = pick[any](g, 0, 1, -1, 10, 0.5, 1e21, -9007199254740993)
	case 1:
		s["maximum"] = pick[any](g, 0, 1, 10, 100, 2.5, 1e6, 9007199254740993)
	case 2:
		s["minimum"], s["exclusiveMinimum"] = pick[any](g, 0, 1, 1.5), true
	case 3:
		s["maximum"], s["exclusiveMaximum"] = pick[any](g, 1, 10, 1.5), true
	case 4:
		s["multipleOf"] = pick[any](g, 2, 3, 10, 0.5, 0.1, 1e-3)
	case 5:
		s["format"] = pick(g, "int32", "int64", "float", "double")
	case 6:
		s["enum"] = []any{1, 2, 10}
	}
	return s
}

// combine adds allOf, anyOf, oneOf or not.
func (g *generator) combine(s tree) {
	switch junctor := pick(g, "allOf", "anyOf", "oneOf", "not"); junctor {
	case "not":
		s["not"] = g.restriction(s)
	default:
		if s[junctor] != nil {
			return
		}
		list := []any{g.restriction(s)}
		for g.chance(2) {
			list = append(list, g.restriction(s))
		}
		s[junctor] = list
	}
}

// restriction is a schema that only validates, for use below a junctor.
func (g *generator) restriction(of tree) tree {
	s := tree{}
	switch of["type"] {
	case "object":
		properties, _ := of["properties"].(tree)
		if len(properties) > 0 {
			name := keyOf(g, properties)
			if g.chance(2) {
				s["required"] = []any{name}
			}
			if inner, isTree := properties[name].(tree); isTree && g.chance(2) {
				s["properties"] = tree{name: g.restriction(inner)}
			}
		}
		if g.chance(4) {
			s[pick(g, "minProperties", "maxProperties")] = 1
		}
	case "array":
		s[pick(g, "minItems", "maxItems")] = 1 + g.IntN(2)
		if inner, isTree := of["items"].(tree); isTree && g.chance(3) {
			s["items"] = g.restriction(inner)
		}
	case "string":
		switch g.IntN(4) {
		case 0:
			s["pattern"] = pick(g, patterns...)
		case 1:
			s["enum"] = []any{g.word(), g.word()}
		case 2:
			s["format"] = pick(g, stringFormats...)
		default:
			s[pick(g, "minLength", "maxLength")] = g.IntN(4)
		}
	case "integer", "number":
		switch g.IntN(3) {
		case 0:
			s["multipleOf"] = pick(g, 2, 3)
		case 1:
			s["enum"] = []any{1, 2}
		default:
			s[pick(g, "minimum", "maximum")] = g.IntN(10)
		}
	default:
		s["enum"] = []any{g.value(of)}
	}
	if g.chance(12) {
		s["not"] = g.restriction(of)
	}
	return s
}

func (g *generator) word() string {
	return pick(g, "a", "b", "ab", "abc", "abcd", "", "A", "12", "a b", "ä", "日本", "a\"b", "10%", "x.y", "a\nb", "<&>")
}

func (g *generator) structuralCase() question {
	for {
		g.depth = 0
		root := g.rootSchema()
		if !g.chance(8) {
			for range 1 + g.IntN(3) {
				g.damageSchema(root)
			}
		}
		asked := question{Op: "structural", Schema: raw(root)}
		if len(asked.Schema) > 900 {
			continue
		}
		if answer, err := asked.answer(); err == nil {
			given, isAnswer := answer.(*structuralAnswer)
			if isAnswer && given.ConversionError == "" && len(given.Structural) == 0 && len(given.Definition) == 0 && !g.chance(8) {
				continue
			}
			return asked
		}
	}
}

// schemas are all schemas in a schema, itself included.
func schemas(value any, found []tree) []tree {
	s, isTree := value.(tree)
	if !isTree {
		return found
	}
	found = append(found, s)
	for _, key := range sortedKeys(s) {
		switch key {
		case "properties", "patternProperties", "definitions":
			if inner, isTree := s[key].(tree); isTree {
				for _, name := range sortedKeys(inner) {
					found = schemas(inner[name], found)
				}
			}
		case "items", "additionalProperties", "not", "additionalItems":
			found = schemas(s[key], found)
		case "allOf", "anyOf", "oneOf":
			if list, isList := s[key].([]any); isList {
				for _, inner := range list {
					found = schemas(inner, found)
				}
			}
		}
	}
	return found
}

// damageSchema makes a schema differ from what the rules allow, mostly.
func (g *generator) damageSchema(root tree) {
	found := schemas(root, nil)
	s := found[g.IntN(len(found))]
	switch g.IntN(24) {
	case 0, 1:
		delete(s, "type")
	case 2:
		s["type"] = pick(g, "object", "array", "string", "integer", "null", "number", "thing", "")
	case 3:
		s["nullable"] = true
	case 4:
		s["title"], s["description"] = "t", "d"
	case 5:
		s["additionalProperties"] = pick[any](g, true, false, tree{"type": "string"}, tree{})
	case 6:
		s["properties"] = tree{g.fieldName(): g.schema()}
	case 7:
		delete(s, pick(g, "items", "properties", "additionalProperties"))
	case 8:
		s["default"] = g.oddDefault()
	case 9, 10:
		junctor := pick(g, "allOf", "anyOf", "oneOf")
		s[junctor] = []any{pick(g, tree{"type": "string"}, tree{"properties": tree{"new": tree{}}}, tree{"nullable": true}, tree{"default": 1},
			tree{"items": tree{}}, tree{"description": "d"}, tree{"additionalProperties": tree{}}, tree{"x-kubernetes-int-or-string": true},
			tree{"properties": tree{"metadata": tree{}}}, tree{"not": tree{"properties": tree{"new": tree{"minimum": 1}}}}, tree{"items": tree{"maximum": 1}},
			tree{"x-kubernetes-preserve-unknown-fields": true}, tree{"x-kubernetes-embedded-resource": true}, tree{"title": "t"},
			tree{"x-kubernetes-list-type": "set"}, tree{"x-kubernetes-list-map-keys": []any{"a"}}, tree{"x-kubernetes-map-type": "atomic"},
			tree{"uniqueItems": true}, tree{"pattern": "("}, tree{"enum": []any{1}})}
	case 11:
		s["not"] = pick(g, tree{"type": "string"}, tree{"required": []any{"a"}}, tree{"properties": tree{"new": tree{"minimum": 1}}})
	case 12:
		s["pattern"] = pick(g, "(", "a{2,1}", "[z-a]", "(?=a)", `\8`, "*", "a**", `(?P<n>a)`, "[[:foo:]]", `\pX`, "a{1001}", "(?<n>a)")
	case 13:
		s["uniqueItems"] = pick[any](g, true, false)
	case 14:
		s[pick(g, "$ref", "id", "$schema")] = "http://a.io/x"
	case 15:
		s[pick(g, "definitions", "patternProperties")] = tree{"a": tree{"type": "string"}}
	case 16:
		s["dependencies"] = tree{"a": pick[any](g, []any{"b"}, tree{"type": "object"})}
	case 17:
		s["items"] = pick[any](g, []any{tree{"type": "string"}}, tree{}, tree{"type": "string"})
	case 18:
		s["additionalItems"] = pick[any](g, true, tree{"type": "string"})
	case 19:
		s["x-kubernetes-list-type"] = pick(g, "set", "map", "atomic", "list", "")
	case 20:
		s["x-kubernetes-list-map-keys"] = pick[any](g, []any{"name"}, []any{"name", "name"}, []any{"other"}, []any{})
	case 21:
		s["x-kubernetes-map-type"] = pick(g, "atomic", "granular", "other")
	case 22:
		s[pick(g, "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string")] = true
	default:
		switch g.IntN(4) {
		case 0:
			s["x-kubernetes-preserve-unknown-fields"] = pick(g, true, false)
		case 1:
			s["required"] = []any{pick(g, "a", "missing")}
		case 2:
			s["enum"] = pick[any](g, []any{}, []any{1, "a", nil}, []any{tree{"a": 1}})
		default:
			if properties, isTree := root["properties"].(tree); isTree {
				properties[pick(g, "metadata", "kind", "apiVersion")] = pick(g, tree{"type": "string"}, tree{"type": "object"}, tree{"type": "integer"},
					tree{"type": "object", "properties": tree{"labels": tree{"type": "object"}}},
					tree{"type": "object", "properties": tree{"name": tree{"type": "string", "default": "n"}}},
					tree{"type": "object", "minProperties": 1})
			}
		}
	}
}

func (g *generator) oddDefault() any {
	return pick[any](g, nil, 1, "a", 1.5, true, tree{}, []any{}, tree{"a": 1}, tree{"unknown": 1}, []any{nil}, tree{"metadata": tree{"name": 5}})
}
