package text_test

import (
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/format/text"
)

func TestCommandLine(t *testing.T) {
	for in, want := range map[string]string{
		"python3|-u|train.py|--lr|3":                       "python3 -u train.py --lr 3",
		"train.py|--wandb-key=s|--hf-token|s|--steps|3":    "train.py --wandb-key=*** --hf-token *** --steps 3",
		"train.py|--hf-token|--steps|3":                    "train.py --hf-token --steps 3",
		"train.py|+logger.api_key=s|model.tokenizer=llama": "train.py +logger.api_key=*** model.tokenizer=llama",
		"train.py|--db|postgres://u:s@db/x":                "train.py --db postgres://***@db/x",
		"train.py|--hook|https://h/x?sig=s":                "train.py --hook https://h/x?***",
		"train.py|-H|Authorization: Bearer s":              "train.py -H Authorization: Bearer ***",
		"python3|-c|import token\nx = 1":                   "python3 -c import token\nx = 1",
		"train.py|--max-tokens|3|--cache|dir":              "train.py --max-tokens 3 --cache dir",
		"":                                                 "",
	} {
		if got := text.CommandLine(strings.Split(in, "|")); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
