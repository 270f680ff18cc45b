// Checks prose: the length of sentences, and the words of a list. scripts/lint-prose calls it:
//     node lint.mjs MODULES WORDS [--comments] FILE...
// MODULES is the folder with node_modules, WORDS the list. textlint's kernel reads the Markdown and runs the two rules
// below.
// Exit code: 0 if nothing was found or with --comments, 1 if something was found, 2 if a file cannot be read.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const MAX_WORDS = 30;
// Stands for a code span or an address in the text that is checked. The character is no letter, so it does not count as
// a word.
const OPAQUE = "\uE000";

const [modules, list, ...rest] = process.argv.slice(2);
const comments = rest[0] === "--comments";
const files = comments ? rest.slice(1) : rest;
const require = createRequire(`${modules}/package.json`);
const { TextlintKernel } = require("@textlint/kernel");
const markdown = require("@textlint/textlint-plugin-markdown").default;
const { split, SentenceSplitterSyntax } = require("sentence-splitter");

const words = readWords();
const kernel = new TextlintKernel();
const options = {
  ext: ".md",
  plugins: [{ pluginId: "markdown", plugin: markdown }],
  rules: [
    { ruleId: "sentence-length", rule: sentenceLength },
    { ruleId: "words", rule: doubtfulWords },
  ],
};

let found = 0;
for (const file of files) {
  let source;
  try {
    source = readFileSync(file, "utf8").replaceAll("\r\n", "\n");
  } catch (error) {
    console.error(`lint-prose: cannot read ${file}: ${error.message}`);
    process.exit(2);
  }
  const blocks = comments ? commentBlocks(source, file.endsWith(".rs")) : [{ line: 1, text: source }];
  for (const { line, text } of blocks) {
    for (const message of (await kernel.lintText(text, { ...options, filePath: file })).messages) {
      console.log(`${file}:${line + message.loc.start.line - 1}: ${message.message}`);
      found += 1;
    }
  }
}
const what = comments ? "comments of " : "";
console.log(`${plural(found, "finding")} in ${what}${plural(files.length, "file")}`);
process.exitCode = found && !comments ? 1 : 0;

function plural(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function readWords() {
  const entries = [];
  for (const [index, line] of readFileSync(list, "utf8").split("\n").entries()) {
    if (/^\s*(#|$)/.test(line)) continue;
    const [, phrases, suggestion] = /^(.+?):\s+(.+)$/.exec(line) ?? [];
    if (!suggestion) {
      console.error(`lint-prose: ${list}:${index + 1}: expected "words: suggestion"`);
      process.exit(2);
    }
    for (const phrase of phrases.split("|").map((part) => part.trim())) {
      const escaped = phrase.replace(/[.*+?^${}()[\]\\]/g, "\\$&").replace(/\s+/g, "\\s+");
      const pattern = new RegExp(`(?<![\\p{L}\\p{N}_-])${escaped}(?![\\p{L}\\p{N}_-])`, "giu");
      entries.push({ pattern, suggestion });
    }
  }
  return entries;
}

// Rule: no sentence of a paragraph is longer than MAX_WORDS words. Tables and headings are not counted.
function sentenceLength(context) {
  return {
    [context.Syntax.Paragraph](node) {
      const prose = flatten(context, node);
      for (const { start, end } of sentences(prose.text)) {
        const count = prose.text.slice(start, end).split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
        if (count > MAX_WORDS) {
          report(context, node, prose, start, `${count} words (at most ${MAX_WORDS}): ${quote(prose, start, end)}`);
        }
      }
    },
  };
}

// Rule: no text has a word of the list.
function doubtfulWords(context) {
  const check = (node) => {
    const prose = flatten(context, node);
    for (const { pattern, suggestion } of words) {
      for (const match of prose.text.matchAll(pattern)) {
        const { start, end } = sentences(prose.text).find((sentence) => match.index < sentence.end);
        const word = match[0].replace(/\s+/g, " ");
        report(context, node, prose, match.index, `"${word}" (${suggestion}): ${quote(prose, start, end)}`);
      }
    }
  };
  return { Paragraph: check, Header: check, TableCell: check };
}

function report(context, node, prose, index, message) {
  const offset = prose.offsets[index] - node.range[0];
  context.report(node, new context.RuleError(message, { padding: context.locator.at(offset) }));
}

// The text of a node without markup. For each character of `text`, `offsets` has its position in the source, and
// `shown` has what a report prints for it.
function flatten(context, node) {
  const source = context.getSource();
  const prose = { text: "", offsets: [], shown: [] };
  const add = (text, offset, shown = text) => {
    for (let i = 0; i < text.length; i += 1) {
      prose.offsets.push(offset + i);
      prose.shown.push(text.length === 1 ? shown : text[i]);
    }
    prose.text += text;
  };
  const walk = (child) => {
    const [start, end] = child.range;
    if (child.type === "Str") {
      // The text of a quotation contains the `>` of its later lines.
      add(source.slice(start, end).replace(/\n[ \t]*>[> \t]*/g, (mark) => "\n".padEnd(mark.length)), start);
    } else if (child.type === "Code" || (child.type === "Link" && isAddress(source.slice(start, end)))) {
      add(OPAQUE, start, source.slice(start, end));
    } else if (child.type === "Break" || child.type === "Html") {
      add(" ", start);
    } else if (child.type !== "Image") {
      child.children?.forEach(walk);
    }
  };
  walk(node);
  return prose;
}

function isAddress(link) {
  return !link.startsWith("[");
}

function sentences(text) {
  const found = [];
  for (const { type, range } of split(text)) {
    if (type !== SentenceSplitterSyntax.Sentence) continue;
    const [from, end] = range;
    found.push({ start: from + text.slice(from, end).search(/\S|$/), end });
  }
  return found;
}

function quote(prose, start, end) {
  return prose.shown.slice(start, end).join("").replace(/\s+/g, " ").trim();
}

// The comments of Rust or C source, each with the line that it begins at. Comments on successive lines are one text if
// they have the same marker and the same indentation.
function commentBlocks(source, rust) {
  const blocks = [];
  let line = 1;
  let start = 0; // where the line begins
  let at = 0;
  let open; // the block that a comment on the next line may continue
  const skipTo = (end) => {
    for (; at < end; at += 1) {
      if (source[at] === "\n") {
        line += 1;
        start = at + 1;
      }
    }
  };
  const endOf = (pattern, from) => {
    pattern.lastIndex = from;
    const match = pattern.exec(source);
    return match ? match.index + match[0].length : source.length;
  };
  while (at < source.length) {
    const two = source.slice(at, at + 2);
    if (two === "//") {
      const end = endOf(/(?=\n)/g, at);
      const [, marker, text] = /^(\/\/\/(?!\/)|\/\/!|\/\/+) ?(.*)$/.exec(source.slice(at, end));
      const column = at - start;
      const alone = /^\s*$/.test(source.slice(start, at));
      if (alone && open?.marker === marker && open.column === column && open.next === line) {
        open.text += `\n${text}`;
      } else {
        open = { line, text, marker, column };
        blocks.push(open);
      }
      open.next = line + 1;
      skipTo(end);
    } else if (two === "/*") {
      let end = endOf(/\*\//g, at + 2);
      // Rust's block comments can be nested.
      while (rust && end < source.length && isOpen(source.slice(at, end))) end = endOf(/\*\//g, end);
      const text = source.slice(at, end).replace(/^\/\*[*!]?|\*+\/$/g, "");
      const indentation = " ".repeat(at - start + 3);
      blocks.push({
        line,
        text: text
          .split("\n")
          .map((part) => (part.startsWith(indentation) ? part.slice(indentation.length) : part.replace(/^ *\*? ?/, "")))
          .join("\n"),
      });
      skipTo(end);
    } else if (rust && /^(?:b|c)?r#*"/.test(source.slice(at, at + 20)) && !/\w/.test(source[at - 1] ?? "")) {
      const quotes = source.indexOf('"', at);
      const hashes = source.slice(at, quotes).replace(/[^#]/g, "");
      skipTo(endOf(new RegExp(`"${hashes}`, "g"), quotes + 1));
    } else if (source[at] === '"') {
      skipTo(endOf(/(?:[^"\\]|\\[^])*"/g, at + 1));
    } else if (source[at] === "'") {
      // A character, or in Rust a lifetime.
      const character = /^'(?:\\[^][^'\n]*|[^'\\\n])'/u.exec(source.slice(at, at + 16));
      skipTo(at + (character ? character[0].length : 1));
    } else {
      skipTo(at + 1);
    }
  }
  // Lines in columns and indented lines are tables, code or drawings, not sentences.
  for (const block of blocks) block.text = block.text.replace(/^(?: {4}|.*[^\s.:?!] {2,}\S).*$/gm, "");
  return blocks;
}

function isOpen(comment) {
  return comment.split("/*").length > comment.split("*/").length;
}
