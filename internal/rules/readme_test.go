package rules_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// TestTheReadmeShowsTestedCode: each block of Go in the README stands, word for
// word, in the testable examples.
func TestTheReadmeShowsTestedCode(t *testing.T) {
	readme := read(t, "../../README.md")
	examples := read(t, "../../example_test.go")
	blocks := goBlock.FindAllStringSubmatch(readme, -1)
	if len(blocks) < 3 {
		t.Fatalf("the README has %d blocks of Go, want at least 3", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(examples, b[1]) {
			t.Errorf("not in example_test.go:\n%s", b[1])
		}
	}
}

var mdLink = regexp.MustCompile(`\]\(([^)#:]+)\)`)

// TestLinksOfTheDocsLeadSomewhere looks at the links to files.
func TestLinksOfTheDocsLeadSomewhere(t *testing.T) {
	for _, doc := range []string{
		"README.md", "CONTRIBUTING.md", "docs/choosing.md", "docs/configuration.md", "docs/design.md",
		"docs/guarantees.md", "docs/writing-a-driver.md",
	} {
		dir := "../../"
		if below, ok := strings.CutSuffix(doc, doc[strings.LastIndex(doc, "/")+1:]); ok {
			dir += below
		}
		for _, link := range mdLink.FindAllStringSubmatch(read(t, "../../"+doc), -1) {
			if _, err := os.Stat(dir + link[1]); err != nil {
				t.Errorf("%s: %v", doc, err)
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
