// The top of what the chart shows in the colour of live bytes, in bytes.
(() => {
    const chart = document.querySelector("#timeline canvas");
    const copy = document.createElement("canvas");
    [copy.width, copy.height] = [chart.width, chart.height];
    const pen = copy.getContext("2d", { willReadFrequently: true });
    pen.drawImage(chart, 0, 0);
    const wanted = getComputedStyle(document.documentElement).getPropertyValue("--live").trim();
    const [red, green, blue] = [1, 3, 5].map((place) => parseInt(wanted.slice(place, place + 2), 16));
    const { width, height, data } = pen.getImageData(0, 0, chart.width, chart.height);
    for (let y = 18; y < height; y += 1) {
        for (let x = 75; x < width - 8; x += 1) {
            const place = (y * width + x) * 4;
            const near =
                Math.abs(data[place] - red) + Math.abs(data[place + 1] - green) + Math.abs(data[place + 2] - blue);
            if (data[place + 3] > 60 && near < 60)
                return (1 - (y - 18) / (height - 42)) * Number(chart.dataset.scale);
        }
    }
    return 0;
})();
