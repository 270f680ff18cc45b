// Lists what a reader with a screen reader, a keyboard or weak eyes would miss. The value is a list of texts.
(() => {
    const missing = [];
    const name = (element) =>
        (element.getAttribute("aria-label") || element.textContent || element.title || "").trim();
    const visible = (element) => element.getClientRects().length > 0;
    for (const button of document.querySelectorAll("button"))
        if (!name(button)) missing.push("a button without a name");
    for (const field of document.querySelectorAll("select, input")) {
        if (!field.getAttribute("aria-label") && !field.closest("label"))
            missing.push(`${field.outerHTML.slice(0, 80)} without a label`);
    }
    for (const canvas of document.querySelectorAll("canvas")) {
        if (canvas.getAttribute("aria-hidden") !== "true" && !canvas.getAttribute("aria-label"))
            missing.push("a canvas without a label");
    }
    for (const table of document.querySelectorAll("table"))
        if (!table.caption) missing.push("a table without a caption");
    for (const section of document.querySelectorAll("section"))
        if (!document.getElementById(section.getAttribute("aria-labelledby"))?.textContent.trim())
            missing.push(`${section.id} without a title`);
    // A screen reader goes from heading to heading, and from level to level.
    const headings = [...document.querySelectorAll("h1, h2, h3, h4")].filter(visible);
    if (headings.filter((heading) => heading.tagName === "H1").length !== 1) missing.push("not one h1");
    for (const section of document.querySelectorAll("section"))
        if (!section.querySelector("h2")) missing.push(`${section.id} without a heading`);
    headings.forEach((heading, place) => {
        if (!heading.textContent.trim()) missing.push("an empty heading");
        const above = place === 0 ? 0 : Number(headings[place - 1].tagName[1]);
        if (Number(heading.tagName[1]) > above + 1) missing.push(`${heading.textContent} skips a level of headings`);
    });
    const titles = [...document.querySelectorAll("h2")].map((heading) => heading.textContent);
    if (new Set(titles).size < titles.length) missing.push("two panels have the same title");
    for (const element of document.querySelectorAll("[tabindex]"))
        if (element.tabIndex > 0) missing.push("a tabindex above 0");
    const numbers = (text) => (text.match(/[\d.]+/g) || []).map(Number);
    const light = (colour) => {
        const [red, green, blue] = colour.map((part) => {
            const share = part / 255;
            return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const [red, green, blue, alpha = 1] = numbers(getComputedStyle(at).backgroundColor);
            if (alpha > 0.99) return [red, green, blue];
        }
        return [255, 255, 255];
    };
    const seen = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) continue;
        if (!visible(element) || element.closest(".unseen") || element.closest(":disabled")) continue;
        const style = getComputedStyle(element);
        const isDrawn = element instanceof SVGElement;
        if (isDrawn && element.tagName !== "text") continue;
        const front = numbers(isDrawn ? style.fill : style.color).slice(0, 3);
        const back = isDrawn
            ? numbers(getComputedStyle(element.parentElement.querySelector("rect")).fill)
            : ground(element);
        const [one, other] = [light(front), light(back)].sort((a, b) => b - a);
        const contrast = (one + 0.05) / (other + 0.05);
        const key = `${front} on ${back}`;
        if (contrast < 4.5 && !seen.has(key)) {
            seen.add(key);
            missing.push(`contrast ${contrast.toFixed(2)} of "${node.data.trim().slice(0, 30)}" (${key})`);
        }
    }
    for (const target of document.querySelectorAll("button, select, input, summary, .flame rect")) {
        if (matchMedia("(pointer: coarse)").matches && visible(target) && target.getBoundingClientRect().height < 44)
            missing.push(`${target.outerHTML.slice(0, 80)} is too small for a finger`);
    }
    const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    const reaches = (element) => element.getBoundingClientRect().right > document.documentElement.clientWidth;
    if (wide > 0) {
        const names = [...document.querySelectorAll("body *")].filter(reaches).map((one) => `${one.tagName}#${one.id}.${one.className}`);
        missing.push(`the page is ${wide} pixels too wide: ${names.slice(0, 12)}`);
    }
    return missing;
})();
